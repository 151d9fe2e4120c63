"""`resident` behind a collate function of the script's own: whole samples are kept."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from hotlap.attach.apply import PlanInProcess
from hotlap.feed.memory.sample_store import SampleStore
from hotlap.plan import Plan


class Item(NamedTuple):
    words: torch.Tensor
    more: dict[str, Any]


def item(index: int) -> Item:
    words = torch.arange(1 + index % 5) + index
    more = {"scale": np.full(2, index, np.float32), "name": f"n{index}", "label": index % 3}
    return Item(words, more)


class Items(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any] = item) -> None:
        self.make = make

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def padded(samples: list[Item]) -> tuple[torch.Tensor, list[str]]:
    words = pad_sequence([sample.words for sample in samples], batch_first=True)
    scale = torch.stack([torch.from_numpy(sample.more["scale"]) for sample in samples])
    names = [f"{s.more['name']}/{s.more['label']}" for s in samples]
    return words * scale[:, :1], names


def epochs(
    dataset: Any,
    collate: Any,
    *,
    resident: bool = True,
    change: Callable[[Any], None] | None = None,
) -> tuple[list[Any], dict[str, str]]:
    """Return the batches of four epochs, and the proof; `change` is done to each batch."""
    torch.manual_seed(3)
    plan = PlanInProcess(Plan({"resident": {}} if resident else {}))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=collate)
    seen = []
    for _ in range(4):
        plan.iterator_wanted(loader)
        iterator = iter(loader)
        plan.iterator_made(loader, iterator)
        for batch in iterator:
            seen.append(repr(batch))
            if change is not None:
                change(batch)
    return seen, plan.proofs()[0] if resident else {}


def same(dataset: Any, collate: Any, **more: Any) -> dict[str, str]:
    plain, _ = epochs(dataset, collate, resident=False, **more)
    served, proof = epochs(dataset, collate, **more)
    assert served == plain
    return proof


def test_samples_of_any_length_are_read_once_and_collated_in_every_epoch() -> None:
    proof = same(Items(), padded)
    assert proof["state"] == "applied"
    assert "15 batches served" in proof["why"] and "5 read from the dataset" in proof["why"]


def test_a_function_that_is_made_again_in_every_epoch_keeps_nothing_twice() -> None:
    plan, data = PlanInProcess(Plan({"resident": {}})), Items()
    for _ in range(4):
        loader = DataLoader(data, batch_size=8, collate_fn=lambda batch: padded(batch))
        plan.iterator_wanted(loader)
        iterator = iter(loader)
        plan.iterator_made(loader, iterator)
        list(iterator)
    assert len(plan.targets()) == 1
    assert "15 batches served" in plan.proofs()[0]["why"]


def test_a_collate_that_draws_draws_what_a_plain_run_draws() -> None:
    def noisy(samples: list[Item]) -> torch.Tensor:
        return padded(samples)[0] * torch.rand(())

    assert same(Items(), noisy)["state"] == "applied"


def test_a_collate_that_writes_into_its_samples_changes_nothing_that_is_kept() -> None:
    def doubled(samples: list[Item]) -> list[Any]:
        for sample in samples:
            sample.words.mul_(2)
            sample.more["scale"] += 1
            sample.more["seen"] = sample.more.get("seen", 0) + 1
        return [padded(samples), [sample.more["seen"] for sample in samples]]

    assert same(Items(), doubled)["state"] == "applied"


def test_a_step_that_writes_into_a_batch_changes_nothing_that_is_kept() -> None:
    def change(batch: list[Item]) -> None:
        batch[0].words.zero_()
        batch[0].more["scale"][:] = -1

    assert same(Items(), list, change=change)["state"] == "applied"


def test_samples_that_are_the_data_sets_own_and_are_written_to_are_not_kept() -> None:
    """A plain run finds what it wrote in an earlier epoch: so must this one."""

    class Owner(Items):
        def __init__(self) -> None:
            super().__init__()
            self.items = [{"x": torch.ones(2)} for _ in range(40)]

        def __getitem__(self, index: int) -> Any:
            return self.items[index]

    def grown(samples: list[Any]) -> torch.Tensor:
        for sample in samples:
            sample["x"] += 1
        return torch.stack([sample["x"] for sample in samples])

    plain, _ = epochs(Owner(), grown, resident=False)
    served, proof = epochs(Owner(), grown)
    assert served == plain and proof["state"] != "applied"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda index: {"image": object()}, "an object of class object"),
        (lambda index: torch.ones(2, requires_grad=True), "requires a gradient"),
        (lambda index: [torch.rand(1)], "draws from"),
    ],
)
def test_what_cannot_be_kept_is_refused(make: Any, words: str) -> None:
    seen, proof = epochs(Items(make), len)
    assert seen == ["8"] * 20
    assert proof["state"] == "refused" and words in proof["why"]


def test_samples_that_are_read_together_must_be_a_list() -> None:
    class Together(Items):
        def __getitems__(self, indices: list[int]) -> torch.Tensor:
            return torch.tensor(indices)

    proof = same(Together(), torch.Tensor.tolist)
    assert proof["state"] == "refused" and "not a list of its samples" in proof["why"]


def test_another_sample_at_the_second_reading_is_refused() -> None:
    def once(index: int) -> Any:
        return [index, time.perf_counter_ns()]

    _, proof = epochs(Items(once), list)
    assert proof["state"] == "refused"


def test_more_than_is_allowed_is_refused_as_soon_as_the_size_is_known() -> None:
    store = SampleStore(1000, max_bytes=2**20)
    reason = store.keep([torch.zeros(2**15)] * 2, torch.tensor([0, 1]))
    assert reason is not None and "max_mib" in reason


@pytest.mark.parametrize(
    "other",
    [
        [1.0, torch.zeros(2, dtype=torch.int32), np.zeros(2), "a"],
        [1.0, torch.zeros(2), np.zeros(2), "b"],
        [1.0, torch.zeros(2), np.zeros(3), "a"],
        [-1.0, torch.zeros(2), np.zeros(2), "a"],
        [1, torch.zeros(2), np.zeros(2), "a"],
        (1.0, torch.zeros(2), np.zeros(2), "a"),
        [1.0, torch.zeros(2), np.zeros(2)],
        [1.0, -torch.zeros(2), np.zeros(2), "a"],
    ],
)
def test_any_difference_is_found(other: Any) -> None:
    store = SampleStore(4, max_bytes=2**30)
    index = torch.tensor([2])
    assert store.keep([[1.0, torch.zeros(2), np.zeros(2), "a"]], index) is None
    assert store.difference([[1.0, torch.zeros(2), np.zeros(2), "a"]], index) is None
    assert store.difference([other], index) is not None


def test_what_is_not_a_number_equals_itself() -> None:
    store = SampleStore(1, max_bytes=2**30)
    index = torch.tensor([0])
    assert store.keep([{"x": float("nan"), "y": torch.tensor([torch.nan])}], index) is None
    again = [{"x": float("nan"), "y": torch.tensor([torch.nan])}]
    assert store.difference(again, index) is None


def table(index: int) -> Any:
    """Columns of one row, in one memory that they share without overlapping."""
    row = torch.arange(5.0) + index
    return row[:2], row[2:], row.numpy()[4:4], np.float32(index), np.float32(index)


def twice(index: int) -> Any:
    row = torch.arange(5.0) + index
    return {"x": row, "raw": row}


def overlapping(index: int) -> Any:
    row = torch.arange(5.0) + index
    return row, row[4:]


def as_array(index: int) -> Any:
    row = torch.arange(5.0) + index
    return row, row.numpy()[::-1]


def one_list(index: int) -> Any:
    words = [f"w{index}"]
    return words, words


def with_attribute(index: int) -> Any:
    row = torch.arange(5.0) + index
    vars(row)["weight"] = 2.0
    return row, index


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (table, None),
        *((make, "two parts of a sample share memory") for make in (twice, overlapping)),
        *((make, "two parts of a sample share memory") for make in (as_array, one_list)),
        (with_attribute, "a tensor with the attribute 'weight'"),
    ],
)
def test_a_sample_of_which_a_copy_behaves_in_another_way_is_not_kept(
    make: Any, words: str | None
) -> None:
    refused = SampleStore(40, 2**30).keep([make(0), make(1)], torch.tensor([0, 1]))
    assert (refused is None) if words is None else (refused is not None and words in refused)


class Scaled(Item):
    """A named tuple whose constructor makes its parts of what it is given."""

    def __new__(cls, words: torch.Tensor, more: dict[str, Any]) -> Any:
        return super().__new__(cls, words * 2, more)


def test_a_constructor_of_samples_is_not_called_for_their_copies() -> None:
    def scaled(index: int) -> Scaled:
        return Scaled(*item(index))

    plain, _ = epochs(Items(scaled), padded, resident=False)
    served, proof = epochs(Items(scaled), padded)
    assert proof["state"] == "applied"
    assert repr(plain) == repr(served)
