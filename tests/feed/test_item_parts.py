"""`resident` for data sets that augment: what comes before the first draw is kept."""

import decimal
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Sampler, Subset, WeightedRandomSampler

from hotlap.attach.apply import PlanInProcess
from hotlap.feed.memory import item_parts
from hotlap.feed.purity.first_times import FirstTimes
from hotlap.plan import Plan
from tests.feed.heard import Heard, trained

SAMPLES = 40
EPOCHS = 4


class Augmented(Dataset[Any]):
    """Rows with noise."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __len__(self) -> int:
        return SAMPLES

    def decode(self, index: int) -> torch.Tensor:
        return torch.full((3,), index) * self.scale

    def __getitem__(self, index: int) -> Any:
        row = self.decode(index)
        # Also a write into what was decoded.
        row += torch.rand(3)
        return row, index % 3


DECODED: list[int] = []
"""Indices that were decoded."""


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Count in torch's function: what the data set's own code names must not change."""
    full = torch.full

    def counting(size: Any, index: int) -> torch.Tensor:
        DECODED.append(index)
        return full(size, index)

    monkeypatch.setattr(torch, "full", counting)
    # Tests must not depend on how fast this machine is just now.
    monkeypatch.setattr(item_parts, "_WORTH_IT", 1e9)
    DECODED.clear()
    # What a data set of these tests leaves behind is not to reach other tests.
    with decimal.localcontext():
        yield
    torch.set_default_dtype(torch.float32)


def batches(
    dataset: Any,
    plan: PlanInProcess,
    change: Callable[[int, Any], None] | None = None,
    **options: Any,
) -> list[str]:
    """Train without a model: batches, and the draws of a loop between them."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    found = []
    if "sampler" in options:
        options = {"sampler": options["sampler"](), "shuffle": False}
    loader = Heard(dataset, **{"batch_size": 4, "shuffle": True, **options})
    loader.plan = plan
    for epoch in range(EPOCHS):
        if change is not None:
            change(epoch, dataset)
        for batch in loader:
            found.append(f"{batch} {torch.rand(1)} {random.random()}")
    return found


def same(make: Callable[[], Any], **options: Any) -> tuple[dict[str, str], int]:
    """Return the proof of `resident`, and how often it decoded, after comparing with plain."""
    plain = batches(make(), PlanInProcess(Plan({})), **options)
    DECODED.clear()
    plan = PlanInProcess(Plan({"resident": {}}))
    assert batches(make(), plan, **options) == plain
    (proof,) = plan.proofs()
    return proof, len(DECODED)


class Permuted(Sampler[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        return iter(np.random.permutation(SAMPLES))


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": False}, {"collate_fn": list}, {"batch_size": 7}, {"sampler": Permuted}],
    ids=["shuffled", "in order", "own collate", "last is smaller", "numpy's integers"],
)
def test_each_sample_is_decoded_once_and_augmented_each_time(options: dict[str, Any]) -> None:
    proof, decoded = same(Augmented, **options)
    assert proof["state"] == "applied"
    assert "`Augmented.__getitem__` draws random numbers" in proof["why"]
    # Batches that are read to see where the code draws, and samples that are made in both ways.
    assert decoded < 3 * SAMPLES


@pytest.mark.parametrize("in_background", [0, 2])
def test_in_a_background_thread_samples_are_made_as_in_a_plain_run(in_background: int) -> None:
    def run(plan: dict[str, Any]) -> Any:
        options = {"num_workers": 0}
        return trained(Augmented(), options, plan=plan, in_background=in_background)

    found = run({"resident": {}})
    assert found.batches == run({}).batches
    assert found.proof["state"] == "refused"
    assert "samples are read in a background thread" in found.proof["why"]


def test_before_a_sample_is_asked_for_again_it_has_no_effect_and_is_not_refused() -> None:
    plan = PlanInProcess(Plan({"resident": {}}))
    seen: list[dict[str, str]] = []
    batches(Augmented(), plan, lambda _epoch, _dataset: seen.extend(plan.proofs()))
    after_one = seen[1]
    assert after_one["state"] == "no_effect" and "a second time" in after_one["why"]
    assert seen[-1]["state"] == "applied"


class OfPictures(Augmented):
    def __getitem__(self, index: int) -> Any:
        pixels = np.full((4, 5, 3), index, dtype=np.uint8)
        picture = Image.fromarray(pixels).convert("L")
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(picture) + np.random.randn(4, 5)


class OfOthers(Augmented):
    """Draws within a call within a call."""

    def jitter(self, row: torch.Tensor) -> torch.Tensor:
        return row * random.random()

    def __getitem__(self, index: int) -> Any:
        return self.jitter(self.decode(index)), {"index": index}


class Inherits(OfOthers):
    pass


@pytest.mark.parametrize("kind", [OfPictures, OfOthers, Inherits], ids=lambda kind: kind.__name__)
def test_what_augments_in_another_way_is_served_as_well(kind: Any) -> None:
    proof, _ = same(kind)
    assert proof["state"] == "applied"
    assert "__getitem__" not in vars(Inherits)


def test_of_a_part_of_a_data_set_only_that_part_is_decoded() -> None:
    def make() -> Any:
        return Subset(Subset(Augmented(), range(0, 36, 2)), range(1, 17))

    plan = PlanInProcess(Plan({"resident": {}}), fill_ahead=True)
    assert batches(make(), plan) == batches(make(), PlanInProcess(Plan({})))
    assert plan.proofs()[0]["state"] == "applied"
    assert set(DECODED) == set(range(2, 34, 2))


def test_in_a_trial_everything_is_there_at_once() -> None:
    plan = PlanInProcess(Plan({"resident": {}}), fill_ahead=True)
    dataset = Augmented()
    loader = Heard(dataset, batch_size=4)
    loader.plan = plan
    torch.manual_seed(1)
    iterator = iter(loader)
    DECODED.clear()
    found = [str(next(iterator)) for _ in range(10)]
    assert not DECODED
    torch.manual_seed(1)
    loader.plan = PlanInProcess(Plan({}))
    iterator = iter(loader)
    assert found == [str(next(iterator)) for _ in range(10)]


def test_what_the_script_changes_is_decoded_again() -> None:
    def change(epoch: int, dataset: Any) -> None:
        dataset.scale = 1.0 + (epoch > 1)

    proof, decoded = same(Augmented, change=change)
    assert proof["state"] == "applied"
    assert decoded > 2 * SAMPLES


def test_a_sample_that_is_asked_for_again_in_the_first_epoch_is_verified_before() -> None:
    def weighted() -> Any:
        return WeightedRandomSampler([1.0] * SAMPLES, 2 * SAMPLES)

    assert same(Augmented, sampler=weighted)[0]["state"] == "applied"
    proof, _ = same(SetsAside, sampler=weighted)
    assert "is not the same when read again" in proof["why"]
    assert "had been served" not in proof["why"]


class Generates(Augmented):
    def __init__(self) -> None:
        super().__init__()
        self.draw = np.random.default_rng(0)

    def __getitem__(self, index: int) -> Any:
        return self.decode(index) + self.draw.random() + random.random()


class DrawsAtOnce(Augmented):
    def __getitem__(self, index: int) -> Any:
        noise = random.random()
        return self.decode(index) * noise


class DrawsForSome(Augmented):
    def __getitem__(self, index: int) -> Any:
        row = self.decode(index)
        extra = random.random() if index == 39 else 0.0
        return row + extra, random.random()


class Consumes(Augmented):
    """The rest reads on where the first part stopped: without the first part it starts anew."""

    def __getitem__(self, index: int) -> Any:
        rows = {"left": [index, index + 1, index + 2]}
        first = take(rows)
        noise = random.random()
        return first, take(rows), noise


class Shares(Augmented):
    def __getitem__(self, index: int) -> Any:
        row = self.decode(index)
        view = row[:2]
        row += random.random()
        return row, view


class Varies(Augmented):
    """Decodes another row each time, and not by a generator that could be looked at."""

    def __getitem__(self, index: int) -> Any:
        row = torch.tensor(time.perf_counter_ns())
        return row, random.random()


class Keeps(Augmented):
    def __init__(self) -> None:
        super().__init__()
        self.last = -1

    def remember(self, index: int) -> int:
        self.last = index
        return index

    def __getitem__(self, index: int) -> Any:
        row = self.remember(index)
        return row, random.random()


class SetsAside(Augmented):
    """The rest hangs on what the first part has set, beside its variables."""

    def prepare(self, index: int) -> int:
        torch.set_default_dtype(torch.float64)
        return index

    def __getitem__(self, index: int) -> Any:
        row = self.prepare(index)
        noise = torch.rand(3)
        torch.set_default_dtype(torch.float32)
        return row + noise


class LeavesBehind(Augmented):
    """As above, and what a sample leaves behind is what its own rest would need."""

    def prepare(self, index: int) -> int:
        decimal.getcontext().prec = index + 1
        return index

    def __getitem__(self, index: int) -> Any:
        row = self.prepare(index)
        return row + random.random(), decimal.getcontext().prec


def take(rows: dict[str, list[int]]) -> int:
    return rows["left"].pop()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DrawsAtOnce, "draws random numbers in its first statement"),
        (Keeps, "reading a sample changes Keeps.last"),
        (SetsAside, "is not the same when read again"),
        (LeavesBehind, "is not the same when read again"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_kept_is_refused_and_gives_the_same(kind: Any, words: str) -> None:
    proof, _ = same(kind)
    assert proof["state"] == "refused"
    assert "reading a sample draws from" in proof["why"] and words in proof["why"]


def test_a_generator_of_its_own_is_none_whose_draws_can_be_looked_at() -> None:
    proof, _ = same(Generates)
    assert (proof["state"], "uses a random generator" in proof["why"]) == ("refused", True)


def test_what_draws_for_some_samples_only_is_divided_before_that() -> None:
    proof, _ = same(DrawsForSome)
    assert proof["state"] == "applied"


def test_variables_that_hang_on_each_other_are_kept_together() -> None:
    for kind in (Consumes, Shares):
        proof, _ = same(kind)
        assert proof["state"] == "applied"


def test_what_is_another_when_decoded_again_is_found_before_it_is_served() -> None:
    plan = PlanInProcess(Plan({"resident": {}}))
    batches(Varies(), plan)
    (proof,) = plan.proofs()
    assert proof["state"] == "refused"
    assert "is not the same when read again" in proof["why"]


def test_beyond_the_limit_rows_are_decoded_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_parts, "_LOOK_EVERY", 10)
    monkeypatch.setattr(item_parts.HostPlace, "free_bytes", lambda _: 2**40)
    monkeypatch.setattr(item_parts, "bytes_of_others", lambda _: 8192 * 2**20)
    proof, decoded = same(Augmented)
    assert proof["state"] == "applied"
    assert decoded > 2.5 * SAMPLES


def test_what_is_decoded_as_fast_as_it_is_copied_is_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(item_parts, "_WORTH_IT", 0.0)
    monkeypatch.setattr(FirstTimes, "ENOUGH", 8)
    proof, _ = same(Augmented)
    assert proof["state"] == "refused" and "not faster" in proof["why"]


class Fails(Augmented):
    def __getitem__(self, index: int) -> Any:
        row = self.decode(index)
        if random.random() < 0.02:
            raise OSError("the file is damaged")
        return row


def test_what_the_data_set_raises_reaches_the_script() -> None:
    plain = Fails.__getitem__
    for plan in ({}, {"resident": {}}):
        with pytest.raises(OSError, match="damaged"):
            batches(Fails(), PlanInProcess(Plan(plan)))
        assert vars(Fails)["__getitem__"] is plain
