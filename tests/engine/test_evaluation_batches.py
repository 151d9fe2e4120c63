"""Held-out samples are measured in batches that fit, larger than training's for small models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import hotlap
from hotlap.device.accelerator import Cuda
from hotlap.plan import Plan
from tests.engine.test_device_runs import Steady, network, task
from tests.fake_device import FakeCuda

MIB = 2**20


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[int]]]:
    """Return what trains on a device where a batch of evaluation needs so many bytes; the report,
    and the samples of each batch that was evaluated."""

    def trained(needed: int, plan: dict[str, Any] | None = None, **options: Any) -> Any:
        device, sizes = FakeCuda(), list[int]()
        device.needed = needed
        monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: device)

        def evaluate(model: Any, batch: Any) -> dict[str, Any]:
            sizes.append(len(batch[1]))
            loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
            return {"loss": (loss, len(batch[1]))}

        given = task(
            data=Steady(),
            held_out=Steady(),
            steps=None,
            epochs=2,
            evaluate=evaluate,
            drop_last=True,
        )
        return hotlap.train(given, Plan(plan or {}), device="cuda", **options), sizes

    return trained


TRIED = [8, 8]
SMALL = [8] * 6 + [2]


@pytest.mark.parametrize(
    ("needed", "sizes"),
    [
        (50 * 2**30, SMALL),
        (33 * MIB, SMALL),
        (32 * MIB, [16, 16, 16, 2]),
        # Powers of two: what a batch needs may differ by some bytes in another process.
        (11 * MIB, [32, 18]),
        (0, [50]),
    ],
)
def test_a_batch_is_as_large_as_memory_allows(needed: int, sizes: list[int], train: Any) -> None:
    done, seen = train(needed)
    assert seen == TRIED + 2 * sizes
    plain, _ = train(50 * 2**30)
    for mine, theirs in zip(done.epochs, plain.epochs, strict=True):
        assert mine.held_out["loss"] == pytest.approx(theirs.held_out["loss"], rel=1e-6)


def test_what_a_plan_splits_stays_split(train: Any) -> None:
    _, seen = train(0, {"micro_batch": {"size": 4}})
    assert set(seen) == {4, 2}


def test_a_run_that_was_finished_measures_what_it_measured_before(
    train: Any, tmp_path: Path
) -> None:
    done, _ = train(11 * MIB, run_dir=tmp_path)
    again, seen = train(11 * MIB, run_dir=tmp_path, resume="auto")
    assert seen == [*TRIED, 32, 18]
    assert again.held_out == done.held_out


def test_what_a_call_needed_leaves_the_peak_of_the_run_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, peak = [100], [700]

    def work() -> None:
        peak[0] = max(peak[0], 130)

    def forget(name: str) -> None:
        peak[0] = held[0]

    for name, stand_in in {
        "memory_allocated": lambda name: held[0],
        "max_memory_allocated": lambda name: peak[0],
        "reset_peak_memory_stats": forget,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    device = Cuda("cuda")
    assert device.needed_bytes(work) == 30
    assert device.peak_bytes() == 700


@pytest.mark.gpu
def test_on_a_device_a_small_model_is_measured_in_large_batches() -> None:
    device = Cuda("cuda")
    model = network().cuda()
    batch = torch.randn(2**20, 3, device="cuda")
    model(batch)
    # Both layers' outputs: 16 and 16 numbers, dropout's 16, and 2.
    needed = device.needed_bytes(lambda: model(batch))
    assert 2**20 * 4 * 16 <= needed <= 2**20 * 4 * 80
