"""Held-out samples are measured in batches that fit, larger than training's for small models."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import hotlap
from hotlap.device.accelerator import Cuda
from hotlap.engine.evaluate import _batches_together
from hotlap.plan import Plan
from tests.engine.test_device_runs import Steady, network, task
from tests.fake_device import FakeCuda

MIB = 2**20


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> Any:
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="sum"), len(labels)


def mean(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, labels)


def contrastive(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return how well each sample is told from the others of its batch."""
    apart = torch.cdist(outputs, outputs)
    return torch.nn.functional.cross_entropy(-apart, torch.arange(len(labels)))


def largest(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return 100 * outputs.max()


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, list[int]]]:
    """Return what trains on a device where a batch of evaluation needs so many bytes; the report,
    and the samples of each batch that was evaluated."""

    def trained(
        needed: int,
        plan: dict[str, Any] | None = None,
        measure: Any = cross_entropy,
        **options: Any,
    ) -> Any:
        device, sizes = FakeCuda(), list[int]()
        device.needed = needed
        monkeypatch.setattr("hotlap.engine.build.device_of", lambda name: device)

        def evaluate(model: Any, batch: Any) -> dict[str, Any]:
            sizes.append(len(batch[1]))
            found = measure(model(batch[0]), batch[1])
            return found if isinstance(found, dict) else {"loss": found}

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
COMPARED = [8, 8, 8, 8, 16]
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
    assert seen == TRIED + (COMPARED if sizes != SMALL else []) + 2 * sizes
    plain, _ = train(50 * 2**30)
    for mine, theirs in zip(done.epochs, plain.epochs, strict=True):
        assert mine.held_out["loss"] == pytest.approx(theirs.held_out["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("measure", "is_enlarged"), [(mean, True), (contrastive, False), (largest, False)]
)
def test_a_measure_over_the_batch_is_that_of_the_tasks_batches(
    measure: Any, is_enlarged: bool, train: Any
) -> None:
    done, seen = train(0, measure=measure)
    assert seen == TRIED + COMPARED + 2 * ([50] if is_enlarged else SMALL)
    plain, _ = train(50 * 2**30, measure=measure)
    for mine, theirs in zip(done.epochs, plain.epochs, strict=True):
        assert mine.held_out["loss"] == pytest.approx(theirs.held_out["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("one_by_one", "at_once", "is_enlarged"),
    [
        (10 / 16, 8 / 16, True),
        (10 / 16, 7 / 16, False),
        # Of a sum what rounding changes grows with it.
        (300.0, 302.0, True),
        (300.0, 306.0, False),
    ],
    ids=["two samples", "three samples", "rounding", "more than rounding"],
)
def test_what_rounding_changes_is_no_reason_against_larger_batches(
    one_by_one: float, at_once: float, is_enlarged: bool, train: Any
) -> None:
    _, seen = train(0, measure=lambda _, labels: one_by_one if len(labels) <= 8 else at_once)
    assert seen == TRIED + COMPARED + 2 * ([50] if is_enlarged else SMALL)


OWN = torch.Generator()


@pytest.mark.parametrize("generator", [None, OWN], ids=["global", "its own"])
@pytest.mark.parametrize("is_contrastive", [False, True])
def test_a_measure_that_draws_is_no_reason_against_larger_batches(
    generator: torch.Generator | None, is_contrastive: bool, train: Any
) -> None:
    def measure(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        told = contrastive if is_contrastive else mean
        drawn = 100 * torch.rand((), generator=generator)
        return {"loss": told(outputs, labels), "noise": drawn}

    OWN.manual_seed(0)
    _, seen = train(0, measure=measure)
    # Beside it the others are still compared.
    assert seen == TRIED + COMPARED + 2 * (SMALL if is_contrastive else [50])


def test_a_measure_that_is_no_number_is_no_reason_against_larger_batches(train: Any) -> None:
    _, seen = train(0, measure=lambda outputs, labels: float("nan"))
    assert seen == TRIED + COMPARED + 2 * [50]


def test_what_a_plan_splits_stays_split(train: Any) -> None:
    _, seen = train(0, {"micro_batch": {"size": 4}})
    assert set(seen) == {4, 2}


def test_a_run_that_was_finished_measures_what_it_measured_before(
    train: Any, tmp_path: Path
) -> None:
    done, _ = train(11 * MIB, run_dir=tmp_path)
    again, seen = train(11 * MIB, run_dir=tmp_path, resume="auto")
    assert seen == [*TRIED, *COMPARED, 32, 18]
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


def test_a_rank_with_fewer_batches_gets_its_first_one_as_it_was_read() -> None:
    steps = [[(1, {"x": torch.ones(1)})], [(1, {"x": torch.zeros(1)})], [], []]
    built: Any = SimpleNamespace(
        held_out=SimpleNamespace(epoch=lambda number: iter(steps)),
        reduce=SimpleNamespace(most=lambda own: [max(own[0], 1.0)]),
        hardware=None,
    )
    given = _batches_together(built)
    seen = [(samples, batch.pop("x").add_(1).tolist()) for samples, batch in given]
    assert seen == [(1, [2.0]), (1, [1.0]), (0, [2.0]), (0, [2.0])]
