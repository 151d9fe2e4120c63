"""`__getitem__` is divided between two statements, and both parts together do what it does."""

import importlib.util
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.feed.purity.item_code import CannotDivide, ItemCode

FACTOR = 3


class Base:
    rows = tuple(range(10))
    __hidden = 7

    def load(self, index: int) -> int:
        return self.rows[index] * FACTOR

    def twice(self, value: int) -> int:
        return 2 * value


class Plain(Base):
    def __getitem__(self, index: int) -> Any:
        row = self.load(index)
        noise = random.random()
        return row, noise


class WithinCalls(Base):
    def __getitem__(self, index: int) -> Any:
        return self.twice(self.load(index)) + random.randrange(self.load(index) + 1), index


class Branches(Base):
    def __getitem__(self, index: int) -> Any:
        if index % 2:
            found = self.load(index)
        try:
            rest = 10 // index
        except ZeroDivisionError as error:
            rest = str(error)
        for number in range(3):
            rest = (rest, number)
        if random.random() < 2 and index % 2:
            return found, rest
        return rest


class Rebinds(Base):
    def __getitem__(self, index: int) -> Any:
        index = index % 3
        first, (second, *others) = index, [self.load(index), 4, 5]
        first += second
        return index, first, others, random.random()


class Spells(Base):
    __hidden = 8

    def __getitem__(self, index: int) -> Any:
        value = super().load(index) + self.__hidden
        import math as mathematics

        return mathematics.floor(value) + random.random()


class Lazy(Base):
    def __getitem__(self, index: int) -> Any:
        value = (index and self.load(index)) or (0 < self.twice(index) < 5 and self.load(1))
        rows = [self.twice(each) for each in range(index) if (_last := each) is not None]
        return value, rows, random.random() if index else None


def parts(**given: Any) -> dict[str, Any]:
    return given


class Drawing:
    def __getitem__(self, index: int) -> float:
        return random.random()


class DrawsBehind(Base):
    """What draws and stays in its statement comes before calls that could be taken out."""

    drawing = Drawing()

    @property
    def noise(self) -> float:
        return random.random()

    def __getitem__(self, index: int) -> Any:
        row = self.load(index)
        chosen = (row if random.random() < 0.5 else 0) + self.twice(random.randrange(100))
        pair = parts(image=self.drawing[index], noise=random.random(), row=self.twice(row))
        return chosen, pair, self.noise + self.twice(random.randrange(100))


class Pairs(Base):
    def __getitem__(self, index: int) -> Any:
        pairs = {random.random(): random.random(), self.load(index): random.random()}
        named = [first := self.load(index), self.twice(first)]
        return pairs, named


def closed() -> type:
    shift = 5

    class Closed(Base):
        def __getitem__(self, index: int) -> Any:
            value = self.load(index) + shift
            pick = max([value, 3], key=lambda each: -each * shift)
            return pick, value, random.random()

    return Closed


@pytest.mark.parametrize(
    "kind",
    [Plain, WithinCalls, Branches, Rebinds, Spells, Lazy, DrawsBehind, Pairs, closed()],
    ids=lambda k: k.__name__,
)
def test_both_parts_give_what_the_whole_gives_wherever_it_is_divided(kind: type) -> None:
    dataset: Any = kind()
    code = ItemCode(kind.__getitem__, kind())  # pyright: ignore[reportAttributeAccessIssue]
    for index in range(4):
        random.seed(index)
        whole, ended = dataset[index], random.getstate()
        for after in range(1, code.most + 1):
            divided = code.divide(after)
            random.seed(index)
            values = divided.first(dataset, index)
            assert divided.rest(dataset, index, *values) == whole
            assert random.getstate() == ended
        random.seed(index)
        marked: list[int] = []
        assert code.marked(marked.append)(dataset, index) == whole
        assert marked in (list(range(1, code.most + 1)), [1, 2, 3])


def test_only_what_the_rest_uses_is_handed_over() -> None:
    divided = ItemCode(Rebinds.__getitem__, Rebinds()).divide(2)
    index, others = 1, [4, 5]
    assert divided.first(Rebinds(), 4) == (1, index, others, 3)


def test_calls_within_calls_are_taken_apart_in_their_order() -> None:
    code = ItemCode(WithinCalls.__getitem__, WithinCalls())
    assert code.divide(2).first(WithinCalls(), 2)[0] == 12


class Early(Base):
    def __getitem__(self, index: int) -> Any:
        if index == 0:
            return None
        return self.load(index)


class Counts(Base):
    def __getitem__(self, index: int) -> Any:
        self.last = index
        return self.load(index)


class Takes(Base):
    def __getitem__(self, index: int, more: int = 0) -> Any:
        return self.load(index) + more


class Decorated(Base):
    @torch.no_grad()
    def __getitem__(self, index: int) -> Any:
        return self.load(index)


class Looks(Base):
    def __getitem__(self, index: int) -> Any:
        row = self.load(index)
        return row, sorted(locals())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Early, "its first statement returns"),
        (Counts, "or changes an object"),
        (Takes, "takes more than an index"),
        (Decorated, "decorator"),
        (Looks, "uses `locals`"),
        (list, "no plain function"),
    ],
)
def test_code_that_cannot_be_divided_says_why(kind: type, words: str) -> None:
    with pytest.raises(CannotDivide, match=words):
        ItemCode(kind.__getitem__, kind())  # pyright: ignore[reportAttributeAccessIssue]


_SOURCE = """
import random

class Data:
    def __getitem__(self, index):
        row = index * {factor}
        return row, random.random()
"""


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_source_that_has_changed_since_it_was_loaded_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "its_data.py"
    path.write_text(_SOURCE.format(factor=2))
    module = loaded(path)
    assert ItemCode(module.Data.__getitem__, None).divide(1).first(None, 4) == (8,)
    path.write_text(_SOURCE.format(factor=300))
    with pytest.raises(CannotDivide, match="has changed since"):
        ItemCode(module.Data.__getitem__, None)


def test_code_without_a_source_is_not_divided() -> None:
    made: dict[str, Any] = {}
    exec(_SOURCE.format(factor=2), made)
    with pytest.raises(CannotDivide, match="source"):
        ItemCode(made["Data"].__getitem__, None)


def test_an_error_shows_the_line_of_the_data_set() -> None:
    class Fails(Base):
        def __getitem__(self, index: int) -> Any:
            row = self.load(index)
            return row, random.random()

    with pytest.raises(IndexError) as caught:
        ItemCode(Fails.__getitem__, Fails()).divide(1).first(Fails(), 99)
    frame = caught.traceback[1]
    assert (Path(str(frame.path)), frame.name) == (Path(__file__), "__getitem__")
    assert "row = self.load(index)" in str(frame.statement)
