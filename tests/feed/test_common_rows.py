"""Ranks of one machine keep one copy of a data set, and what each of them is served is its own."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from hotlap.feed.memory.common_rows import CommonRows, Tables
from hotlap.feed.memory.place import HostPlace
from hotlap.feed.memory.resident import ResidentRows

COUNT = 64
LAYOUT = [((COUNT, 2), torch.float32)]
MINE = {0: range(0, COUNT, 2), 1: range(1, COUNT, 2)}


class Numbers(Dataset):
    def __init__(self, shift: float = 0.0) -> None:
        self.shift = shift
        self.reads = 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), self.shift])


class Rank:
    """A rank of a script: its data set, its own way to the copy that all have."""

    def __init__(self, record: Path, dataset: Numbers, max_bytes: int = 2**20) -> None:
        self.dataset, self.reads = dataset, 0
        self.rows = ResidentRows(dataset, max_bytes, place=HostPlace(Tables(record)))

    def read(self, indices: list[int]) -> torch.Tensor:
        self.reads += len(indices)
        return torch.stack([self.dataset[index] for index in indices])

    def epoch(self, indices: range) -> None:
        """Read an epoch, and see that every batch is what a plain run would have read."""
        fetch, order = self.rows.bind(self.dataset, self.read), list(indices)
        for begin in range(0, len(order), 8):
            wanted = order[begin : begin + 8]
            plain = torch.stack([self.dataset[index] for index in wanted])
            assert torch.equal(fetch(wanted), plain)


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(os, "memfd_create"):
        pytest.skip("this system has no memory without a name")
    monkeypatch.setattr(HostPlace, "sharers", 2)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "ranks"
    assert sorted(path.name for path in tmp_path.iterdir()) in ([], ["ranks"])


def test_what_one_rank_has_read_another_is_served(record: Path) -> None:
    ranks = [Rank(record, Numbers()) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.epoch(MINE[number])
    for number, rank in enumerate(ranks):
        rank.epoch(MINE[1 - number])
        assert rank.rows.read_batches == rank.rows.served == COUNT // 16
        assert rank.rows.refused is None
        assert rank.rows.copies == "one copy for 2 ranks"
    first, second = (rank.rows.held[0] for rank in ranks)
    first[3, 1] = 7.0
    assert second[3, 1] == 7.0


def test_ranks_whose_data_sets_differ_keep_a_copy_each(record: Path) -> None:
    ranks = [Rank(record, Numbers(float(number))) for number in range(2)]
    for epoch in range(4):
        for number, rank in enumerate(ranks):
            rank.epoch(MINE[(number + epoch) % 2])
    for rank in ranks:
        assert rank.rows.refused is None and rank.rows.served > 0
        assert "a copy of its own: the dataset" in rank.rows.copies
        assert rank.rows.held[0][:, 1].tolist() == [rank.dataset.shift] * COUNT


def test_other_data_sets_than_the_one_of_the_other_rank_are_no_common_copy(record: Path) -> None:
    first, second = Tables(record), Tables(record)
    room = lambda: True  # noqa: E731
    one = first.join("[*]", LAYOUT, room)
    # The second data set of this form, and one of another form.
    assert one is not None
    assert first.join("[*]", LAYOUT, room) is not None
    other = second.join("[*]", [((COUNT, 3), torch.float32)], room)
    same = second.join("[*]", LAYOUT, room)
    assert other is not None and same is not None
    assert (one.processes, other.processes, same.number) == (2, 1, 1)


def test_what_a_rank_was_served_before_the_difference_was_found_is_said(record: Path) -> None:
    ranks = [Rank(record, Numbers()) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.epoch(MINE[number])
    ranks[0].epoch(MINE[1])
    common: Any = ranks[1].rows._held.common
    common.note_difference()
    ranks[0].epoch(MINE[0])
    assert "the dataset of another rank gives other samples. This was detected after 4" in str(
        ranks[0].rows.refused
    )
    # Nothing of others was served to this one.
    ranks[1].epoch(MINE[0])
    assert ranks[1].rows.refused is None and "a copy of its own" in ranks[1].rows.copies


def test_a_rank_whose_data_set_changes_leaves_the_others_theirs(record: Path) -> None:
    ranks = [Rank(record, Numbers()) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.epoch(MINE[number])
    ranks[0].dataset.shift = 5.0
    ranks[0].epoch(range(COUNT))
    ranks[0].epoch(range(COUNT))
    ranks[1].epoch(MINE[0])
    assert ranks[0].rows.copies == "a copy of its own: Numbers.shift changed"
    assert ranks[0].rows._held.common is None and ranks[0].rows.served > 0
    assert ranks[1].rows.copies == "one copy for 2 ranks" and ranks[1].rows.refused is None


def test_a_sample_belongs_to_the_rank_that_wrote_it_first(record: Path) -> None:
    ranks = [Rank(record, Numbers(float(number))) for number in range(2)]
    ranks[0].epoch(range(16))
    # It reads them too, before it knows of the other's.
    ranks[1].epoch(range(8))
    assert ranks[1].rows._held.of_others.tolist() == list(range(16))
    ranks[1].epoch(range(8))
    assert "a copy of its own" in ranks[1].rows.copies


def test_memory_that_cannot_be_had_is_no_end(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    rank = Rank(record, Numbers())
    rank.epoch(range(COUNT))
    rank.epoch(range(COUNT))
    assert rank.rows.refused is None and rank.rows.served == COUNT // 8
    assert "a copy of its own: shared memory cannot be used here" in rank.rows.copies
    assert "No space left" in rank.rows.copies


def test_one_copy_counts_once(record: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = COUNT * 2 * 4
    monkeypatch.setattr("hotlap.feed.memory.place.available_bytes", lambda: 3 * size)
    place = HostPlace()
    monkeypatch.setattr(place, "keep", lambda rows, index, leaf: rows.index_copy_(0, index, leaf))
    assert place.free_bytes() < size
    place.tables = Tables(record)
    dataset = Numbers()
    rows = ResidentRows(dataset, 2**20, place=place)
    rows.bind(dataset, lambda indices: torch.stack([dataset[n] for n in indices]))([0, 1])
    assert rows.refused is None and rows.bytes == size
    monkeypatch.setattr("hotlap.feed.memory.place.available_bytes", lambda: size)
    rows = ResidentRows(dataset, 2**20, place=place)
    rows.bind(dataset, lambda indices: torch.stack([dataset[n] for n in indices]))([0, 1])
    assert "the dataset takes" in str(rows.refused)


def test_memory_is_taken_before_it_is_written_to(record: Path) -> None:
    table = Tables(record).join("[*]", [((COUNT, 4096), torch.float32)], lambda: True)
    assert table is not None
    found = os.fstat(table._descriptor)
    # A page that is missing later would end the process by SIGBUS.
    assert found.st_blocks * 512 >= found.st_size > COUNT * 4096 * 4
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(table._descriptor, 0)


def killed_with_the_lock(record: Path) -> None:
    """Let a process make the copy, write a half of it, and be killed while it has the lock."""
    begin, end = os.pipe()
    child = os.fork()
    if child == 0:
        table = Tables(record).join("[*]", LAYOUT, lambda: True)
        assert table is not None
        with table.locked():
            table.rows[0][: COUNT // 2] = 1.0
            os.write(end, b"x")
            signal.pause()
    os.close(end)
    assert os.read(begin, 1) == b"x"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begin)


def test_a_rank_that_is_killed_leaves_nothing_behind_and_stops_nobody(record: Path) -> None:
    killed_with_the_lock(record)
    # As ranks that are started again do.
    table = Tables(record).join("[*]", LAYOUT, lambda: True)
    assert isinstance(table, CommonRows) and table.processes == 1
    have = torch.zeros(COUNT, dtype=torch.bool)
    with table.locked():
        table.add_to(have)
    assert not have.any() and not table.rows[0].any()


def test_what_is_left_of_a_killed_rank_is_not_taken_for_samples(record: Path) -> None:
    own = Tables(record).join("[*]", LAYOUT, lambda: True)
    assert own is not None
    killed_with_the_lock(record)
    have = torch.zeros(COUNT, dtype=torch.bool)
    with own.locked():
        own.add_to(have)
    # It has written them, and not said so.
    assert own.processes == 2 and own.rows[0].sum() == COUNT and not have.any()


def test_filling_ahead_is_divided_among_the_ranks(record: Path) -> None:
    ranks = [Rank(record, Numbers()) for _ in range(2)]
    ranks[0].epoch(range(8))
    reads = ranks[1].reads
    ranks[1].rows.fill(ranks[1].dataset, ranks[1].read)
    assert ranks[1].rows.is_complete is False and ranks[1].rows._held.missing == 0
    # Its first sample shows the form of the data set, and is read twice.
    assert ranks[1].reads - reads == COUNT - 8 + 1
