"""Only what fits the rows is kept, and what is kept is compared with what reading gives."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from hotlap.feed.memory import resident
from hotlap.feed.memory.place import HostPlace, no_room
from hotlap.feed.memory.resident import ResidentRows

COUNT = 40


class Numbers(Dataset):
    """Its samples are given by the `read` of each test, whose code nobody looks at beforehand."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index)])


def rows_of(indices: list[int]) -> torch.Tensor:
    return torch.tensor([[float(i)] for i in indices])


def epoch(rows: ResidentRows, dataset: Dataset, read: Callable[[Any], Any]) -> list[Any]:
    fetch = rows.bind(dataset, read)
    return [fetch(list(range(i, i + 8))) for i in range(0, COUNT, 8)]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (lambda wanted: rows_of(wanted).double(), "samples differ"),
        (lambda wanted: rows_of(wanted).expand(-1, 2), "samples differ"),
        (lambda wanted: [rows_of(wanted)], "samples differ"),
        (lambda wanted: {"x": rows_of(wanted)}, "samples differ"),
        (lambda wanted: rows_of(wanted)[1:], "one row per sample"),
        (lambda wanted: rows_of(wanted).sum(), "one row per sample"),
        (lambda wanted: (rows_of(wanted), "a word"), "one row per sample"),
    ],
)
def test_a_batch_that_is_not_like_the_first_is_not_kept(
    second: Callable[[Any], Any], words: str
) -> None:
    dataset = Numbers()
    rows = ResidentRows(dataset, 2**20)
    rows.bind(dataset, rows_of)([0, 1, 2])
    wanted = [3, 4, 5]
    assert repr(rows.bind(dataset, second)(wanted)) == repr(second(wanted))
    assert rows.refused is not None and words in rows.refused
    assert repr(rows.bind(dataset, second)([0, 1, 2])) == repr(second([0, 1, 2]))


def draws(wanted: list[int]) -> Any:
    random.random()
    return rows_of(wanted)


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (draws, "draws from Python's global RNG"),
        (lambda wanted: (rows_of(wanted),), "differ in structure"),
        (lambda wanted: rows_of(wanted).double(), "is not the same"),
        (lambda wanted: rows_of(wanted)[:, [0, 0]], "is not the same"),
        (lambda wanted: rows_of(wanted) + 1e-6, "is not the same"),
    ],
)
def test_samples_that_begin_to_differ_are_told_in_the_next_epoch(
    later: Callable[[Any], Any], words: str
) -> None:
    dataset = Numbers()
    rows = ResidentRows(dataset, 2**20)
    for _ in range(2):
        epoch(rows, dataset, rows_of)
    assert rows.refused is None and rows.served == 5
    assert repr(epoch(rows, dataset, later)[0]) == repr(later(list(range(8))))
    assert rows.refused is not None and words in rows.refused
    assert "after 5 batches had been served from memory" in rows.refused


def test_nothing_is_served_before_samples_were_read_a_second_time() -> None:
    dataset = Numbers()
    rows = ResidentRows(dataset, 2**20)
    epoch(rows, dataset, rows_of)
    assert repr(epoch(rows, dataset, lambda w: rows_of(w) + 1)[0]) == repr(rows_of(range(8)) + 1)
    assert rows.refused is not None and "is not the same" in rows.refused
    assert rows.served == 0


def test_samples_are_read_again_within_a_long_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "REREAD_EVERY", 16)
    dataset, shift = Numbers(), [0.0]
    rows = ResidentRows(dataset, 2**20)

    def read(wanted: list[int]) -> Any:
        return rows_of(wanted) + shift[0]

    epoch(rows, dataset, read)
    fetch = rows.bind(dataset, read)
    first = [fetch(list(range(8))) for _ in range(2)]
    shift[0] = 1.0
    later = [fetch(list(range(8))) for _ in range(3)]
    assert float(first[0][0]) == 0.0 and float(later[-1][0]) == 1.0
    assert rows.refused is not None and "is not the same" in rows.refused


@pytest.mark.parametrize("wanted", [[-1, 2], [0, COUNT], [0.0, 1.0], [True, False], [[0, 1]]])
def test_what_is_no_position_is_asked_of_the_data_set(wanted: list[Any]) -> None:
    dataset = Numbers()
    rows = ResidentRows(dataset, 2**20)

    def read(indices: list[Any]) -> Any:
        return repr(indices) if indices is wanted else rows_of(indices)

    for _ in range(2):
        epoch(rows, dataset, read)
    served = rows.served
    assert rows.bind(dataset, read)(wanted) == repr(wanted)
    assert rows.refused == f"the sampler yields something other than indices from 0 to {COUNT - 1}"
    assert rows.served == served


FILES = [f"{number}.png" for number in range(COUNT)]


class Folder(Numbers):
    def __len__(self) -> int:
        return len(FILES)


def test_a_data_set_that_has_become_longer_is_read_as_usual(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = Folder()
    rows = ResidentRows(dataset, 2**20)
    for _ in range(2):
        epoch(rows, dataset, rows_of)
    served = rows.served
    monkeypatch.setitem(globals(), "FILES", [*FILES, "new.png"])
    epoch(rows, dataset, rows_of)
    assert rows.refused == f"the dataset's length changed from {COUNT} to {COUNT + 1}"
    assert rows.served == served


class Small(HostPlace):
    """A memory in which little is free."""

    def free_bytes(self) -> int:
        return 1000


@pytest.mark.parametrize(
    ("size", "max_bytes", "others", "fits"),
    [
        (1000, 10**9, 0, True),
        (1001, 10**9, 0, False),
        (900, 899, 0, False),
        (500, 900, 400, True),
        (500, 900, 401, False),
    ],
)
def test_rows_take_neither_more_than_is_free_nor_than_is_allowed(
    size: int, max_bytes: int, others: int, fits: bool
) -> None:
    why = no_room(Small(), size, max_bytes=max_bytes, others=others)
    assert (why is None) is fits
