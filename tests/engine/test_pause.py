"""A run that pauses after a step is evaluated there, and goes on as if it had never paused."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import hotlap
from hotlap.recipe import load

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture(scope="module")
def task() -> hotlap.Task:
    return load(Path(__file__).parents[1] / "tiny_recipe.py").task(["--epochs", "2"])


def weights(report: Any) -> list[torch.Tensor]:
    return [value.clone() for value in report.model.state_dict().values()]


def test_a_run_that_pauses_again_and_again_is_the_run_that_does_not(
    task: hotlap.Task, tmp_path: Path
) -> None:
    whole = hotlap.train(task)
    measured, done = [], None
    # Within the first epoch, at its end, after the next step, and beyond the end.
    for until in (5, 16, 17, 17, 100):
        done = hotlap.train(
            task,
            run_dir=tmp_path,
            resume="auto",
            until=until,
            progress=lambda epoch: measured.append((epoch.epoch, epoch.steps, epoch.held_out)),
        )
        assert done.steps == min(until, 32) and done.is_stopped == (until < 32)
    assert done is not None
    assert [each[:2] for each in measured] == [(1, 5), (1, 16), (2, 1), (2, 16)]
    assert all("loss" in held_out for *_, held_out in measured)
    assert all(torch.equal(a, b) for a, b in zip(weights(done), weights(whole), strict=True))
    assert done.held_out == whole.held_out and done.epochs[-1].loss == whole.epochs[-1].loss
