"""Each kind of thing that a sample can depend on, alone: found at once, or seen to change."""

import logging
import random
import sys
import warnings
from collections import deque
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from hotlap.feed.purity.reach import Reach

STATE = np.random.RandomState(0)


class Plain(Dataset):
    """Depends on nothing but what it holds."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index])


def named(read: Callable[[Any, int], Any]) -> Dataset:
    """Return a data set whose samples are read by this function."""
    return type("Reading", (Plain,), {"__getitem__": read, "__module__": __name__})()


def with_closure(generator: Any) -> Callable[[Any, int], Any]:
    def read(self: Any, index: int) -> Any:
        return index + generator.random()

    return read


def with_default(self: Any, index: int, generator: Any = STATE) -> Any:
    return index + generator.rand()


def with_keyword(self: Any, index: int, *, generator: Any = STATE) -> Any:
    return index + generator.rand()


def warning(self: Any, index: int) -> Any:
    warnings.warn("an image is damaged", stacklevel=2)


def logging_(self: Any, index: int) -> Any:
    logging.info("an image is damaged")


def to_standard_error(self: Any, index: int) -> Any:
    sys.stderr.write("an image is damaged")


def to_a_file(self: Any, index: int) -> Any:
    Path("damaged").write_text(str(index))


class Augmentation:
    def apply(self, value: Any) -> Any:
        return value + STATE.rand()

    @staticmethod
    def apply_static(value: Any) -> Any:
        return value + STATE.rand()

    @cached_property
    def shift(self) -> float:
        return STATE.rand()


def by_method(self: Any, index: int) -> Any:
    return self.helper.apply(index)


def by_property(self: Any, index: int) -> Any:
    return self.helper.shift + index


def by_static_method(self: Any, index: int) -> Any:
    return Augmentation.apply_static(index)


class Made:
    def __init__(self, value: Any) -> None:
        self.value = value + STATE.rand()


def by_construction(self: Any, index: int) -> Any:
    return Made(index).value


OWN = ModuleType("own_augmentation")
exec("import random\nRNG = random.Random(0)\ndef shift(x): return x + RNG.random()", vars(OWN))
PACKAGE = ModuleType("own_package")
PACKAGE.augmentation = OWN  # pyright: ignore[reportAttributeAccessIssue]


def by_submodule(self: Any, index: int) -> Any:
    return PACKAGE.augmentation.shift(index)


def by_import(self: Any, index: int) -> Any:
    import own_augmentation  # pyright: ignore[reportMissingImports]

    return own_augmentation.shift(index)


def helped(read: Callable[[Any, int], Any]) -> Dataset:
    dataset: Any = named(read)
    dataset.helper = Augmentation()
    return dataset


def shifted(generator: Any, value: Any) -> Any:
    return value + generator.random()


A_GENERATOR = "random generator or an iterator"


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Plain(own=torch.Generator()), A_GENERATOR),
        (Plain(own=STATE), A_GENERATOR),
        (Plain(own=np.random.default_rng(0)), A_GENERATOR),
        (Plain(own=np.random.PCG64(0)), A_GENERATOR),
        (Plain(own=random.Random(0)), A_GENERATOR),
        (Plain(own=iter([1, 2])), A_GENERATOR),
        (Plain(own=(line for line in "ab")), A_GENERATOR),
        (Plain(own=[{"deep": (torch.Generator(),)}]), A_GENERATOR),
        (Plain(own=partial(shifted, random.Random(0))), A_GENERATOR),
        (Plain(own=random.Random(0).random), A_GENERATOR),
        (named(with_closure(random.Random(0))), A_GENERATOR),
        (named(with_default), A_GENERATOR),
        (named(with_keyword), A_GENERATOR),
        (helped(by_method), A_GENERATOR),
        (helped(by_property), A_GENERATOR),
        (named(by_static_method), A_GENERATOR),
        (named(by_construction), A_GENERATOR),
        (named(by_submodule), A_GENERATOR),
        (named(by_import), A_GENERATOR),
        (named(warning), "may log"),
        (named(logging_), "may log"),
        (Plain(own=logging.getLogger("data")), "may log"),
        (named(to_standard_error), "prints"),
        (named(to_a_file), "may write to a file"),
    ],
)
def test_what_may_not_be_read_twice_is_a_problem(
    dataset: Dataset, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "own_augmentation", OWN)
    problem = Reach(dataset).problem
    assert problem is not None and words in problem


class Loud(Plain):
    """Its own constructor prints, which reading a sample does not."""

    def __init__(self) -> None:
        super().__init__()
        print("loaded")

    def __getitem__(self, index: int) -> Any:
        if index > 99:
            raise Missing(index)
        return index


class Missing(IndexError):
    def __init__(self, index: int) -> None:
        super().__init__(f"no sample {index}")


def test_what_the_data_sets_own_constructor_does_is_no_reading() -> None:
    assert Reach(Loud()).problem is None


def test_a_class_of_a_module_that_is_not_registered_is_looked_at() -> None:
    kind = type("Loaded", (Plain,), {"__getitem__": with_default, "__module__": "not_registered"})
    problem = Reach(kind()).problem
    assert problem is not None and A_GENERATOR in problem


def unused(self: Any, index: int) -> Any:
    return self.helper.scale * index


def test_what_no_code_names_is_none() -> None:
    dataset: Any = helped(unused)
    dataset.helper.scale = 2
    assert Reach(dataset).problem is None


def test_a_default_device_is_not_where_the_data_lies() -> None:
    dataset = Plain(held=torch.ones(9))
    before = Reach(dataset).marks
    with torch.device("meta"):
        assert Reach(dataset).marks == before


def test_the_generators_whose_states_are_watched_are_none() -> None:
    own = [torch.default_generator, random.random, np.random.random]
    assert Reach(Plain(own=own)).problem is None


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class Scaled(Plain):
    scale = 1.0
    """Of the class, until an object has one of its own."""


CHANGES: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda d: setattr(d, "number", 2),
    "an attribute that hides the class's": lambda d: setattr(d, "scale", 2.0),
    "an attribute that goes": lambda d: delattr(d, "number"),
    "a tensor, in place": lambda d: d.tensor.add_(1),
    "a tensor in a list, in place": lambda d: d.tensors[1].zero_(),
    "a transform in a list": lambda d: d.transforms.__setitem__(0, abs),
    "a transform more in a list": lambda d: d.transforms.append(abs),
    "a transform in a dictionary": lambda d: d.named.update(first=abs),
    "a setting in a dictionary": lambda d: d.settings.update(size=2),
    "a setting deep in a dictionary": lambda d: d.settings["deep"].append(1),
    "a number in a list": lambda d: d.numbers.__setitem__(1, 7),
    "a number in a deque": lambda d: d.queue.append(7),
    "a number that becomes a tensor": lambda d: d.settings.update(size=torch.ones(3)),
    "a set": lambda d: d.chosen.add(7),
    "a slot": lambda d: setattr(d.slotted, "scale", 2.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("accepted", [False, True])
def test_what_changes_shows_in_the_quick_look(change: str, accepted: bool) -> None:
    dataset = Scaled(
        number=1,
        tensor=torch.zeros(3),
        tensors=[torch.ones(2), torch.ones(2)],
        transforms=[torch.sin, torch.cos],
        named={"first": torch.sin},
        settings={"size": 1, "deep": [0]},
        numbers=[1, 2],
        queue=deque([1]),
        chosen={1},
        slotted=Slotted(),
    )
    reach = Reach(dataset)
    if accepted:
        reach.watched.accept()
    assert reach.problem is None and reach.watched.find_change() is None
    CHANGES[change](dataset)
    assert reach.watched.find_change() is not None


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


@pytest.mark.parametrize(
    ("tensor", "place"),
    [
        (inferred(), 1),
        (torch.arange(4.0)[::2][:1], 0),
        (torch.arange(4.0)[3:], 0),
    ],
    ids=["made in inference mode", "one number of a strided tensor", "plain"],
)
def test_tensors_of_any_kind_are_looked_at(tensor: torch.Tensor, place: int) -> None:
    dataset = Plain(held=tensor)
    before, again = Reach(dataset), Reach(dataset)
    assert before.problem is None and before.marks == again.marks
    assert before.watched.find_change() is None
    with torch.inference_mode():
        tensor[place] += 1
    assert Reach(dataset).marks != before.marks
