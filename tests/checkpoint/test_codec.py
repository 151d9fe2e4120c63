"""What schedules, optimizers and random states hold goes through JSON and comes back to the bit."""

import json
import math
import random
import struct
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch

from hotlap.checkpoint.codec import decode, encode
from hotlap.errors import UsageError


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "it"), allow_nan=False, sort_keys=True)))


def same(one: Any, other: Any) -> bool:
    """True if both are of one type and of the same bits, whatever is inside them."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and same(one.item(), other.item())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same(mine, theirs) for mine, theirs in pairs)
    return one == other


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**80),
        0.1,
        -0.0,
        5e-324,
        1.7976931348623157e308,
        math.nan,
        math.inf,
        -math.inf,
        "",
        "ü\x00\n\u2028",
        [],
        (),
        {},
        [1, (2, [3.0, (4,)], None)],
        {1: "a", "1": "b", (1, 2): [True], 1.5: {}, None: math.nan},
        Counter({"a": 2, 3: 1}),
        {"__kind__": "float", "value": "nan"},
        {"__kind__": "tuple", "items": [1, 2]},
        torch.tensor(0.1),
        torch.tensor(0.1, dtype=torch.float64),
        torch.tensor(math.nan),
        torch.tensor(-(2**62)),
    ],
    ids=repr,
)
def test_a_value_comes_back_as_it_was_to_its_type_and_last_bit(value: Any) -> None:
    assert same(through_json(value), value)


def test_the_comparison_sees_a_type_a_sign_and_an_order() -> None:
    assert not same((1, 2), [1, 2])
    assert not same(1, 1.0) and not same(1, True)
    assert not same(0.0, -0.0)
    assert not same({1: 0, 2: 0}, {2: 0, 1: 0})
    assert not same(Counter(a=1), {"a": 1})
    assert not same(torch.tensor(1.0), torch.tensor(1.0, dtype=torch.float64))


def test_the_state_of_each_generator_comes_back() -> None:
    generator = random.Random(7)
    generator.gauss(0, 1)
    again = random.Random()
    again.setstate(through_json(generator.getstate()))
    assert again.getstate() == generator.getstate()
    kind, keys, *rest = numpy.random.RandomState(7).get_state(legacy=True)
    assert same(through_json(tuple(rest)), tuple(rest))
    assert kind == "MT19937" and len(keys) == 624


@pytest.mark.parametrize(
    ("number", "plain"),
    [
        (numpy.float64(0.1), 0.1),
        (numpy.float32(0.1), float(numpy.float32(0.1))),
        (numpy.float32("nan"), math.nan),
        (numpy.int64(-3), -3),
    ],
)
def test_numbers_of_numpy_become_plain_ones_of_the_same_value(number: Any, plain: Any) -> None:
    assert same(through_json(number), plain)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        (b"bytes", "bytes"),
        ({1, 2}, "set"),
        (Fraction(1, 3), "Fraction"),
        (1j, "complex"),
        (print, "builtin_function_or_method"),
        (torch.zeros(2), "Tensor"),
        (torch.tensor(1.0, dtype=torch.bfloat16), "Tensor"),
        (numpy.zeros(2), "ndarray"),
    ],
)
def test_what_cannot_come_back_is_refused_with_what_holds_it(value: Any, kind: str) -> None:
    for given in (value, [value], ("a", {"b": value}), {"a": [value]}):
        with pytest.raises(UsageError, match=f"^the schedule holds a {kind}, .* Expected: "):
            encode(given, "the schedule")


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": 1},
        {"__kind__": "object", "value": 1},
        {"__kind__": "float", "value": "1.5"},
        {"__kind__": "float", "value": 1.5},
        {"__kind__": "float", "value": "nan", "more": 1},
        {"__kind__": "tensor", "dtype": "torch.float32"},
        {"__kind__": "tensor", "dtype": "torch.uint8", "value": 1},
        {"__kind__": "tensor", "dtype": "torch.float32", "value": True},
        {"__kind__": "tensor", "dtype": "torch.float32", "value": [1.0]},
        {"__kind__": "tuple", "items": "ab"},
        {"__kind__": "dict", "pairs": {"a": 1}},
        {"__kind__": "dict", "pairs": [["a"]]},
        {"__kind__": "counter", "pairs": ["ab"]},
        {"__kind__": "dict", "pairs": [[[1], 2]]},
        {"__kind__": "dict", "pairs": [[1, 2], [1, 3]]},
        {"__kind__": "tensor", "dtype": "torch.int64", "value": 1.5},
        {"__kind__": "tensor", "dtype": ["torch.int64"], "value": 1},
    ],
    ids=repr,
)
def test_what_no_encoding_gives_is_refused(value: Any) -> None:
    for given in (value, [1, value], {"__kind__": "tuple", "items": [value]}):
        with pytest.raises(ValueError, match="of a checkpoint"):
            decode(given)
