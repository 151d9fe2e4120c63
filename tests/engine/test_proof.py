"""What a proof notes of a recipe's steps: what they were fed, and which gradients they got."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.engine.build import build
from hotlap.engine.roles.reference import _in_format, _Sample
from hotlap.engine.roles.verify import _Delivered, _FeedDigests, _Recorded, _Sampler
from hotlap.engine.step import graph
from hotlap.lab.delivery import check_delivery
from hotlap.nested import flatten_to_json
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


def test_a_recipe_that_hands_out_one_module_is_repeated_in_both_formats() -> None:
    net = torch.nn.Linear(2, 1)
    task = replace(make(), model=lambda: net)
    both = [_in_format(task, dtype).model() for dtype in (torch.float64, torch.float32)]
    assert [each.weight.dtype for each in both] == [torch.float64, torch.float32]
    assert torch.equal(both[0].weight.float(), net.weight) and both[1].weight is not net.weight


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


@pytest.mark.parametrize(
    ("dtype", "reason"),
    [
        (torch.complex64, ""),
        (torch.complex128, "a tensor has a format that cannot be kept: complex128"),
    ],
)
def test_a_step_in_a_format_that_no_file_has_is_not_sampled(
    dtype: torch.dtype, reason: str, tmp_path: Path
) -> None:
    sent: list[str] = []
    channel = SimpleNamespace(send=lambda kind, **_: sent.append(kind), receive=lambda: None)
    options = {"folder": str(tmp_path), "samples": [1, 4]}
    trial: Any = SimpleNamespace(channel=channel, config=SimpleNamespace(options=options))
    sampler = _Sampler(SimpleNamespace(), trial)  # pyright: ignore[reportArgumentType]
    sampler._tensors, sampler._meta = {"model/weight": torch.ones(2, dtype=dtype)}, {"step": 1}
    sampler._hand_over("sample", "step-000001.safetensors")
    assert (sampler.reason, sent) == (reason, [] if reason else ["sample"])
    assert sampler.wanted == (set() if reason else {1, 4})
    assert (tmp_path / "step-000001.safetensors").exists() is not bool(reason)


def test_each_repetition_of_a_step_gets_the_batch_as_it_was_kept() -> None:
    kept: list[torch.Tensor] = []
    spec = flatten_to_json({"inputs": torch.ones(2), "labels": torch.ones(2).long()}, kept)
    sample = object.__new__(_Sample)
    sample.meta = {"counts": [2], "specs": [spec]}
    sample.tensors = {f"batch/0/{number}": leaf for number, leaf in enumerate(kept)}
    for dtype in (torch.float32, torch.float64, torch.float32):
        ((_, batch),) = sample.micros(dtype, "cpu")
        assert batch["inputs"].dtype == dtype and batch["labels"].dtype == torch.int64
        # As a loss may do.
        assert batch["inputs"].div_(255).tolist() == pytest.approx([1 / 255] * 2)
        assert batch["labels"].sub_(1).tolist() == [0, 0]
