"""What a proof notes of a recipe's steps: what they were fed, and which gradients they got."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.engine.build import build
from hotlap.engine.roles.verify import _Delivered, _FeedDigests, _Recorded
from hotlap.engine.step import graph
from hotlap.lab.delivery import check_delivery
from hotlap.plan import Plan
from tests.engine.lattice import mean, sum_and_count
from tests.engine.test_run import make
from tests.fake_device import FakeCuda

GRAPH = Plan({"cuda_graph": {"warm_up": 2}})


def record(plan: Plan, folder: Path, *, steps: int = 6, **changes: Any) -> dict[str, Any]:
    fed, delivered = _FeedDigests(), _Delivered(0)
    task = make(**changes)
    heard = replace(task, model=delivered.wrap_model(task.model), loss=fed.wrap_loss(task.loss))
    trial: Any = SimpleNamespace(
        channel=None, config=SimpleNamespace(options={"folder": str(folder)})
    )
    run = _Recorded(trial, build(heard, plan), fed, delivered)
    run.take(steps)
    return run.record()


@pytest.mark.parametrize("loss", [mean, sum_and_count])
def test_a_split_step_is_fed_what_the_whole_one_is(loss: Any, tmp_path: Path) -> None:
    whole = record(Plan(), tmp_path, loss=loss)
    assert len(set(whole["batches"])) == 6
    split = record(Plan({"micro_batch": {"size": 3}}), tmp_path, loss=loss)
    assert split["batches"] == whole["batches"]


@pytest.mark.parametrize(
    ("loss", "clip"),
    [(mean, {"clip_norm": 0.05}), (sum_and_count, {}), (sum_and_count, {"clip_value": 0.01})],
)
def test_a_split_step_gets_the_gradients_of_its_parts(
    loss: Any, clip: dict[str, float], tmp_path: Path
) -> None:
    whole = record(Plan(), tmp_path, loss=loss, **clip)
    split = record(Plan({"micro_batch": {"size": 3}}), tmp_path, loss=loss, **clip)
    for found in (check_delivery(whole, split), check_delivery(split, whole)):
        assert found.state == "passed", found.evidence
    if clip:
        found = check_delivery(whole, record(Plan(), tmp_path, loss=loss))
        assert found.state == "failed", found.evidence


def test_copies_that_are_trained_are_not_followed_and_the_verdict_says_so(tmp_path: Path) -> None:
    narrow = record(Plan({"master_weights": {}}), tmp_path)
    found = check_delivery(record(Plan(), tmp_path), narrow)
    assert found.state == "partial" and "copies of the parameters" in found.evidence
    # They are no average of the weights; what other tests have left does not move.
    assert not any(any(copy["moved"]) for copy in narrow["averages"])


def test_a_replayed_graph_must_read_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: FakeCuda())
    plain = record(Plan(), tmp_path, steps=12, epochs=9)
    replayed = record(GRAPH, tmp_path, steps=12, epochs=9)
    assert replayed["batches"] == plain["batches"]
    found = check_delivery(plain, replayed)
    assert found.state == "partial" and "a graph of the whole step is replayed" in found.evidence
    take, calls = graph._Inputs.take, []

    def take_late(self: Any, leaves: list[torch.Tensor]) -> None:
        calls.append(None)
        if len(calls) != 6:
            take(self, leaves)

    monkeypatch.setattr(graph._Inputs, "take", take_late)
    late = record(GRAPH, tmp_path, steps=12, epochs=9)["batches"]
    (at,) = (n for n in range(12) if late[n] != plain["batches"][n])
    assert late[at] in plain["batches"][:at]
