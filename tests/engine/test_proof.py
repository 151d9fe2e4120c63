"""What is digested of a recipe's steps."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hotlap
from hotlap.engine.build import build
from hotlap.engine.roles.proof import _FeedDigests, _Recorded, join_micro_batches
from hotlap.plan import Plan
from hotlap.trial import digest
from tests.engine.lattice import mean, sum_and_count
from tests.engine.test_run import make


def digests(loss: Any, plan: Plan, folder: Path) -> list[str]:
    fed = _FeedDigests()
    task = make(loss=loss)
    built = build(replace(task, loss=fed.wrap_loss(task.loss)), plan)
    trial: Any = SimpleNamespace(
        channel=None, config=SimpleNamespace(options={"folder": str(folder)})
    )
    run = _Recorded(trial, built, fed)
    run.take(6)
    return run.record()["batches"]


@pytest.mark.parametrize("loss", [mean, sum_and_count])
def test_a_split_step_is_fed_what_the_whole_one_is(loss: Any, tmp_path: Path) -> None:
    whole = digests(loss, Plan(), tmp_path)
    assert len(set(whole)) == 6
    assert digests(loss, Plan({"micro_batch": {"size": 3}}), tmp_path) == whole


def test_micro_batches_that_are_padded_apart_are_the_batch_that_is_padded_once() -> None:
    pad, rows = hotlap.pad(0, lengths=True), [torch.arange(2) + 1, torch.arange(5) + 1]

    def of(*batches: Any) -> str:
        return digest.of_nested(join_micro_batches(list(batches), pad))

    whole = of(pad(rows))
    assert of(pad(rows[:1]), pad(rows[1:])) == whole
    assert of(pad(rows[1:]), pad(rows[:1])) != whole
    # What is no batch of the collate function's, by a `batch_transform`, stays in parts.
    assert of([pad(rows[:1])], [pad(rows[1:])]) != whole
