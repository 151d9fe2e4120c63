"""Ranks together read each sample of a step once, whatever is said of micro-batches."""

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from hotlap.feed.memory.resident import ResidentRows
from hotlap.feed.sources.source import Source
from hotlap.techniques import FeedTarget, Refusal, get

COUNT = 22
TECHNIQUE = get("micro_batch")


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


def source(batch: int, rank: int, world: int, **options: Any) -> Source:
    return Source(Numbers(), batch, rank=rank, world=world, **options)


def read(sources: list[Source], epochs: int = 1) -> list[int]:
    """Return what all ranks read in the last of some epochs, sorted."""
    found: list[int] = []
    for each in sources:
        for epoch in range(epochs):
            steps = list(each.epoch(epoch))
        found += [x for step in steps for _, batch in step for x in batch.tolist()]
    return sorted(found)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 2, 8])
@pytest.mark.parametrize("is_kept", [False, True])
def test_each_sample_is_read_by_one_rank(world: int, batch: int, is_kept: bool) -> None:
    sources = [source(batch, rank, world) for rank in range(world)]
    for each in sources if is_kept else ():
        rows = ResidentRows(each.dataset, 2**20, own_order=True)
        each.wraps = [rows.bind]
    assert read(sources, epochs=3) == list(range(COUNT))


@pytest.mark.parametrize("size", [1, 3, 4, 8])
def test_micro_batches_are_parts_of_a_ranks_share(size: int) -> None:
    sources = [source(8, rank, 2, micro=2) for rank in range(2)]
    for each in sources:
        target = FeedTarget(each, own_order=True)
        TECHNIQUE.apply(target, TECHNIQUE.options({"size": size}))
        parts = [len(step) for step in each.epoch(0)]
        assert parts[0] == target.notes["micro_batch"] == -(-4 // size)
    assert read(sources) == list(range(COUNT))


@pytest.mark.parametrize(
    ("world", "words"),
    [(1, "is the whole batch, so nothing"), (2, "is the whole share of a rank \\(4 samples\\)")],
)
def test_what_splits_nothing_is_refused(world: int, words: str) -> None:
    target = FeedTarget(source(8, 0, world), own_order=True)
    with pytest.raises(Refusal, match=words):
        TECHNIQUE.apply(target, TECHNIQUE.options({"size": 8}))


def test_of_held_out_samples_each_is_read_by_one_rank() -> None:
    sources = [source(8, rank, 2) for rank in range(2)]
    for each in sources:
        target = FeedTarget(each, own_order=True, is_held_out=True)
        TECHNIQUE.apply(target, TECHNIQUE.options({"size": 6}))
    assert read(sources) == list(range(COUNT))
