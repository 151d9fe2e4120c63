"""What samples depend on is seen: before anything is read twice, and whenever it changes."""

import gc
import logging
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from hotlap.feed.memory.item_parts import ItemParts
from hotlap.feed.memory.resident import ResidentRows
from hotlap.feed.purity.change_watch import ChangeWatch

COUNT = 48
RNG = np.random.default_rng(0)
LOG = logging.getLogger("data")
EPOCH = 0


class Base(Dataset):
    def __init__(self) -> None:
        self.values = list(range(COUNT))

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(self.values[index])])


class Drawing(Base):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + RNG.random()


class Shaken:
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value + RNG.random()


class Compose:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            value = part(value)
        return value


class Transformed(Base):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.notes = [{"points": [index, index]} for index in range(300)]
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return self.transform(super().__getitem__(index))


class Printing(Base):
    def __getitem__(self, index: int) -> Any:
        self.report(index)
        return super().__getitem__(index)

    def report(self, index: int) -> None:
        sys.stdout.write(f"{index}\n")


class Writing(Base):
    def __getitem__(self, index: int) -> Any:
        with open("read.log", "a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


class Logging(Base):
    def __getitem__(self, index: int) -> Any:
        LOG.info("reading %d", index)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Subset(Drawing(), range(COUNT)), "RNG"),
        (ConcatDataset([Drawing()]), "RNG"),
        (Transformed(Shaken()), "RNG"),
        (Transformed(Compose(Compose(Compose(Shaken())))), "RNG"),
        (Transformed(Compose(random.Random(3).random)), "random generator"),
        (Subset(Printing(), range(COUNT)), "prints"),
        (Subset(Logging(), range(COUNT)), "log"),
        (Writing(), "write to a file"),
        (Transformed([object() for _ in range(30_000)]), "more than"),
    ],
)
def test_what_may_not_be_read_twice_is_refused_before_anything_is_read(
    dataset: Any, words: str
) -> None:
    before = RNG.bit_generator.state
    rows = ResidentRows(dataset, 2**20)
    assert rows.refused is not None
    assert words in rows.refused
    assert RNG.bit_generator.state == before


def test_a_refusal_keeps_nothing_alive_that_the_data_set_has_dropped() -> None:
    dataset: Any = Transformed(abs)
    dataset.block = np.zeros(4)
    rows, parts = ResidentRows(dataset, 2**20), ItemParts(2**20)
    parts.begin_epoch()
    parts.fetch(dataset, lambda indices: [dataset[each] for each in indices], [0, 1])
    block = weakref.ref(dataset.block)
    dataset.block = None
    gc.collect()
    assert block() is not None
    rows.refuse("no room")
    parts._refuse("no room")
    gc.collect()
    assert block() is None


class State:
    epoch = 0


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1


OPTIONS = {"noise": {"scale": 1}}
CONFIG: Any = types.ModuleType("config")
CONFIG.epoch = 0


class Changing(Base):
    """Reads whatever it can from everywhere."""

    scale = 1

    def __init__(self) -> None:
        super().__init__()
        self.names = {f"name {index}": index for index in range(COUNT)}
        self.labels = np.arange(COUNT)
        self.every_second = np.arange(2 * COUNT)[::2]
        self.tensor = torch.arange(COUNT)
        self.pairs = [(f"file {index}", index) for index in range(COUNT)]
        self.tensors = [torch.tensor(index) for index in range(COUNT)]
        self.slotted = Slotted()
        self.transforms: list[Any] = [int]

    def __getitem__(self, index: int) -> Any:
        found = [
            self.values[index],
            self.names[f"name {index}"],
            int(self.labels[index]),
            int(self.every_second[index]),
            int(self.tensor[index]),
            self.pairs[index][1],
            int(self.tensors[index]),
            State.epoch,
            self.scale,
            CONFIG.epoch,
            EPOCH,
            self.slotted.scale,
            OPTIONS["noise"]["scale"],
        ]
        for transform in self.transforms:
            found = [transform(value) for value in found]
        return torch.tensor(found)


def swap(array: Any) -> None:
    array[3], array[40] = int(array[40]), int(array[3])


def in_the_class(dataset: Changing) -> None:
    State.epoch += 1


def in_the_globals(dataset: Changing) -> None:
    globals()["EPOCH"] += 1


CHANGES: dict[str, Callable[[Changing], None]] = {
    "a list's late item": lambda d: d.values.__setitem__(45, -1),
    "a dict's late item": lambda d: d.names.__setitem__("name 45", -1),
    "two labels swapped": lambda d: swap(d.labels),
    "an array with gaps": lambda d: swap(d.every_second),
    "a tensor through its array": lambda d: swap(d.tensor.numpy()),
    "a tensor's data": lambda d: swap(d.tensor.data),
    "a tuple in a list": lambda d: d.pairs.__setitem__(45, ("file", -1)),
    "a tensor in a list": lambda d: d.tensors[45].fill_(-1),
    "an attribute": lambda d: setattr(d, "values", [7] * COUNT),
    "a class attribute": in_the_class,
    "an attribute that hides the class's": lambda d: setattr(d, "scale", 3),
    "a module made by hand": lambda d: setattr(CONFIG, "epoch", CONFIG.epoch + 1),
    "a global": in_the_globals,
    "a slot": lambda d: setattr(d.slotted, "scale", d.slotted.scale + 1),
    "a global dict's item": lambda d: OPTIONS["noise"].update(scale=OPTIONS["noise"]["scale"] + 1),
    "a list of transforms": lambda d: d.transforms.append(lambda value: 2 * value),
}


def epoch(fetch: Callable[[Any], Any], halves: Callable[[], None] = lambda: None) -> list[str]:
    seen = []
    for start in range(0, COUNT, 8):
        if start == COUNT // 2:
            halves()
        seen.append(repr(fetch(list(range(start, start + 8)))))
    return seen


def reader(dataset: Dataset) -> Callable[[Any], Any]:
    return lambda indices: default_collate([dataset[i] for i in indices])


@pytest.fixture(autouse=True)
def keep_serving(monkeypatch: pytest.MonkeyPatch) -> None:
    # These data sets are read as fast as memory is.
    monkeypatch.setattr("hotlap.feed.memory.resident._WORTH_IT", 1e9)


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_epochs_makes_samples_be_read_anew(change: str) -> None:
    dataset = Changing()
    rows, read = ResidentRows(dataset, 2**20), reader(dataset)
    for _ in range(2):
        assert epoch(rows.bind(dataset, read)) == epoch(read)
    assert rows.served == COUNT // 8
    CHANGES[change](dataset)
    for _ in range(2):
        assert epoch(rows.bind(dataset, read)) == epoch(read)
    assert rows.refused is None
    assert rows.served == 2 * COUNT // 8


@pytest.mark.parametrize(
    "change",
    [
        "an attribute",
        "a class attribute",
        "a global",
        "an attribute that hides the class's",
        "a module made by hand",
        "a slot",
        "a global dict's item",
        "a list of transforms",
    ],
)
def test_what_is_rebound_in_the_middle_of_an_epoch_is_seen_at_once(change: str) -> None:
    dataset = Changing()
    rows, read = ResidentRows(dataset, 2**20), reader(dataset)
    for _ in range(2):
        epoch(rows.bind(dataset, read))
    mine = epoch(rows.bind(dataset, read), lambda: CHANGES[change](dataset))
    assert mine[COUNT // 16 :] == epoch(read)[COUNT // 16 :]
    assert rows.served == COUNT // 8 + COUNT // 16


def test_without_the_looks_the_samples_would_be_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Changing()
    monkeypatch.setattr(ChangeWatch, "find_change", lambda self: None)
    rows, read = ResidentRows(dataset, 2**20), reader(dataset)
    for _ in range(2):
        epoch(rows.bind(dataset, read))
    mine = epoch(rows.bind(dataset, read), lambda: CHANGES["a global"](dataset))
    assert mine[COUNT // 16 :] != epoch(read)[COUNT // 16 :]


def test_what_keeps_changing_is_read_as_usual() -> None:
    dataset = Changing()
    rows, read = ResidentRows(dataset, 2**20), reader(dataset)
    fetch = rows.bind(dataset, read)
    for step in range(30):
        dataset.values = [step] * COUNT
        indices = list(range(8))
        assert repr(fetch(indices)) == repr(read(indices))
    assert "changes repeatedly" in str(rows.refused)


class Flaky(Base):
    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        if self.reads % 20 == 0:
            raise OSError("flaky")
        return super().__getitem__(index)


def test_a_data_set_that_counts_its_reads_is_read_as_often_as_without() -> None:
    def run(fetch_of: Callable[[Any], Any]) -> list[Any]:
        dataset = Flaky()
        read, seen = reader(dataset), []
        fetch = fetch_of(dataset)(read)
        for start in [*range(0, COUNT, 8), *range(0, COUNT, 8)]:
            try:
                seen.append(repr(fetch(list(range(start, start + 8)))))
            except OSError:
                seen.append("flaky")
        return seen

    plain = run(lambda dataset: lambda read: read)
    assert "flaky" in plain
    assert plain == run(lambda d: lambda read: ResidentRows(d, 2**20).bind(d, read))


def test_a_loader_in_a_background_thread_is_not_read_under_other_states() -> None:
    dataset = Changing()
    rows, read = ResidentRows(dataset, 2**20), reader(dataset)
    epoch(rows.bind(dataset, read))
    seen: list[Any] = []
    worker = threading.Thread(target=lambda: seen.extend(epoch(rows.bind(dataset, read))))
    state = torch.get_rng_state()
    worker.start()
    worker.join()
    assert seen == epoch(read)
    assert rows.refused == "samples are read in a background thread"
    assert torch.equal(torch.get_rng_state(), state)


def test_a_refusal_that_comes_too_late_says_so_loudly() -> None:
    class Late(Base):
        hidden = iter(())

    dataset = Base()
    rows = ResidentRows(dataset, 2**20)
    reads = [0]

    def read(indices: Any) -> Any:
        reads[0] += 1
        return default_collate([dataset[i] + (reads[0] > 20) for i in indices])

    for _ in range(30):
        epoch(rows.bind(dataset, read))
    assert "WHAT WAS LEARNED DIFFERS" in str(rows.refused)


def test_a_data_set_that_is_read_faster_than_memory_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hotlap.feed.memory.resident._WORTH_IT", 0.0)
    dataset = Changing()
    rows, read = ResidentRows(dataset, 2**20), reader(dataset)
    for _ in range(30):
        assert epoch(rows.bind(dataset, read)) == epoch(read)
    assert "not faster" in str(rows.refused)
    assert "DIFFERS" not in str(rows.refused)
