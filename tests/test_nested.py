"""Nested batches: changed with their types kept, and taken apart so that nothing is lost."""

import copy
import enum
import json
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from hotlap import nested
from hotlap.feed.transfer.plain import to_device


class Pair(NamedTuple):
    images: Any
    labels: Any


class Marked(Pair):
    """A named tuple that holds something beside its fields."""


class Encoding(UserDict):
    """As tokenizers give it: a mapping with attributes beside its data."""

    def __init__(self, data: Any = None, sequences: int | None = None) -> None:
        super().__init__(data)
        self.sequences = sequences


class Scaled(Pair):
    """A named tuple that makes its parts of what it is given."""

    def __new__(cls, images: Any, labels: Any) -> Any:
        return super().__new__(cls, images / 2, labels)


class Two(tuple):
    def __new__(cls, one: Any, other: Any) -> Any:
        return super().__new__(cls, (one, other))


class Slotted(UserDict):
    __slots__ = ("note",)


class Key(enum.Enum):
    X = 1


class Words(list):
    pass


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def taken(batch: Any) -> tuple[Any, list[torch.Tensor]]:
    leaves: list[torch.Tensor] = []
    return nested.flatten_into(batch, leaves), leaves


BATCHES = {
    "tensor": ones(2),
    "list": [ones(2), ones(3)],
    "tuple": (ones(2), [ones(1)]),
    "dict": {"a": ones(2), 3: (ones(1),)},
    "named tuple": Pair(ones(2), {"b": ones(3)}),
    "encoding": Encoding({"input_ids": ones(2, 3), "mask": ones(2, 3)}, sequences=1),
    "encoding in a list": [Encoding({"a": ones(2)}), ones(2)],
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_what_was_taken_apart_is_made_again(batch: Any) -> None:
    structure, leaves = taken(batch)
    again = nested.rebuild(structure, iter(leaves))
    assert_same(again, batch)
    written = nested.from_json(json.loads(json.dumps(nested.to_json(structure))))
    assert written == structure
    assert_same(nested.rebuild(written, iter(leaves)), batch)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_what_is_mapped_keeps_its_types(batch: Any) -> None:
    twice = nested.map_tensors(batch, lambda tensor: tensor * 2)
    assert_same(nested.map_tensors(twice, lambda tensor: tensor / 2), batch)
    assert next(nested.tensors(twice)).flatten()[0] == 2
    # What was given is as it was.
    assert next(nested.tensors(batch)).flatten()[0] == 1


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, UserDict):
        assert {k: v for k, v in vars(one).items() if k != "data"} == {
            k: v for k, v in vars(other).items() if k != "data"
        }
        assert_same(one.data, other.data)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key, item in one.items():
            assert_same(item, other[key])
    else:
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)


def test_what_may_hold_more_than_its_parts_show_is_not_taken_apart() -> None:
    marked = Marked(ones(1), ones(1))
    vars(marked)["note"] = "mine"
    held = Encoding({"a": ones(1)})
    vars(held)["sequences"] = [1]
    for batch in (
        marked,
        held,
        OrderedDict(a=ones(1)),
        defaultdict(list, a=ones(1)),
        Words([ones(1)]),
        [ones(1), "a word"],
        torch.nn.Parameter(ones(1)),
        ones(1).requires_grad_(),
    ):
        assert taken(batch)[0] is None


def test_what_a_constructor_does_is_not_done_again() -> None:
    structure, leaves = taken(Scaled(ones(2), ones(1)))
    again = nested.rebuild(structure, iter(leaves))
    assert type(again) is Scaled and again.images.tolist() == [0.5, 0.5]
    assert nested.map_tensors(Two(ones(1), 3), lambda each: each + 1) == (2 * ones(1), 3)
    highest = nested.map_tensors(ones(2, 2).max(0), torch.clone)
    assert type(highest) is torch.return_types.max  # pyright: ignore
    slotted = Slotted({"a": ones(1)})
    slotted.note = "mine"
    assert taken(slotted)[0] is None


def test_keys_that_json_lacks_are_known() -> None:
    for key, is_plain in (("a", True), (3, True), (Key.X, False), (("a", 0), False)):
        batch = [{key: ones(1)}, Encoding({"b": ones(1)})]
        found = nested.flatten_to_json(batch, [])
        assert (found is not None) is is_plain
        if is_plain:
            assert nested.from_json(json.loads(json.dumps(found))) == taken(batch)[0]


def test_structures_are_equal_only_if_their_batches_are_made_alike() -> None:
    one = taken(Encoding({"a": ones(1)}, sequences=1))[0]
    assert one == taken(Encoding({"a": ones(2)}, sequences=1))[0]
    assert one != taken(Encoding({"a": ones(1)}, sequences=2))[0]
    assert one != taken({"a": ones(1)})[0]
    assert taken(Pair(ones(1), ones(1)))[0] != taken((ones(1), ones(1)))[0]


def test_any_container_can_be_mapped() -> None:
    held = defaultdict(list, a=ones(1))
    moved = nested.map_tensors(held, lambda tensor: tensor * 2)
    assert moved["a"] == 2
    assert held["a"] == 1
    assert moved.default_factory is list
    words = nested.map_tensors(Words([ones(1), "a"]), lambda tensor: tensor * 2)
    assert type(words) is Words
    assert words[1] == "a"
    marked = Marked(ones(1), "b")
    vars(marked)["note"] = "mine"
    moved = nested.map_tensors(marked, lambda tensor: tensor * 2)
    assert (type(moved), moved.note, moved.images) == (Marked, "mine", 2)
    assert nested.map_tensors(MappingProxyType({"a": ones(1)}), lambda tensor: tensor * 2)["a"] == 2
    largest = torch.max(ones(2, 2), dim=0)
    moved = nested.map_tensors(largest, lambda tensor: tensor * 2)
    assert type(moved) is type(largest)
    assert moved.values[0] == 2
    size = ones(2, 3).shape
    assert nested.map_tensors(size, lambda tensor: tensor) is size
    assert list(nested.leaves([1, {"a": (None, "b")}, ones(1)]))[:3] == [1, None, "b"]


def test_a_class_that_is_not_there_under_its_name_is_said() -> None:
    hidden = namedtuple("hidden", "a")
    structure = taken(hidden(ones(1)))[0]
    with pytest.raises(LookupError, match="hidden of"):
        nested.from_json(nested.to_json(structure))
    assert copy.copy(structure) == structure


@pytest.mark.parametrize("is_sorted", [True, False])
def test_the_sizes_of_a_packed_sequence_stay_where_they_are(is_sorted: bool) -> None:
    packed = pack_sequence([ones(3, 2), ones(2, 2)], enforce_sorted=is_sorted)
    batch = {"words": packed, "labels": ones(2)}
    moved = to_device(batch, "meta")
    assert moved["labels"].is_meta and moved["words"].data.is_meta
    assert type(moved["words"]) is type(packed)
    assert moved["words"].batch_sizes is packed.batch_sizes
    order = moved["words"].sorted_indices
    assert order is None if is_sorted else order.is_meta
    # What needs no change is not made again.
    assert nested.map_tensors(packed, lambda tensor: tensor) is packed


def test_it_is_known_whether_a_batch_holds_a_packed_sequence() -> None:
    packed = pack_sequence([ones(2, 2), ones(3, 2)], enforce_sorted=False)
    for batch, is_packed in (
        (packed, True),
        ([ones(1), {"a": packed}], True),
        (Encoding({"a": packed}), True),
        ([ones(1), Pair(ones(1), {"a": ones(1)})], False),
        (ones(1), False),
    ):
        assert nested.has_packed(taken(batch)[0]) is is_packed
