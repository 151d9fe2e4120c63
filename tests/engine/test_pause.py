"""A run that pauses after a step is evaluated there, and goes on as if it had never paused."""

import sys
from dataclasses import replace
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


@pytest.mark.parametrize("until", [5, 100])
def test_a_run_that_is_asked_to_end_while_a_pause_is_measured_measures_it(
    until: int, task: hotlap.Task, tmp_path: Path
) -> None:
    """Resumed, it is there already: its measures would be missing for good. So would those of a run
    that ends before its pause."""
    asked: list[int] = []

    def evaluate(model: Any, batch: Any) -> dict[str, float]:
        asked.append(1)
        return {"accuracy": 1.0}

    measured: list[Any] = []
    done = hotlap.train(
        replace(task, evaluate=evaluate, metrics={}, epochs=1, schedule=None),
        run_dir=tmp_path,
        until=until,
        # The first batch is measured before the first step.
        stop=lambda: len(asked) > 1,
        progress=measured.append,
    )
    assert done.is_stopped == (until == 5) and done.steps == min(until, 16) and len(asked) > 2
    assert [each.held_out for each in measured] == [{"accuracy": 1.0}]


def test_an_epoch_that_was_saved_after_an_error_in_it_is_reported_as_a_whole(
    task: hotlap.Task, tmp_path: Path
) -> None:
    """The caller's function raises at a pause after 5 of 16 steps."""
    whole: list[Any] = []
    hotlap.train(task, progress=whole.append)

    def fail(epoch: Any) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        hotlap.train(task, run_dir=tmp_path, until=5, progress=fail)
    done: list[Any] = []
    hotlap.train(task, run_dir=tmp_path, resume="auto", progress=done.append)
    assert [(epoch.steps, epoch.loss) for epoch in done] == [
        (epoch.steps, pytest.approx(epoch.loss, rel=1e-6)) for epoch in whole
    ]
