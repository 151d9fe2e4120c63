"""What is digested of a recipe's steps."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.engine.build import build
from hotlap.engine.roles.proof import _FeedDigests, _Recorded
from hotlap.plan import Plan
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
