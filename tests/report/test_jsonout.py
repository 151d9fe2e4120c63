"""One document of strict JSON, whatever the record holds; what is no data is refused."""

import io
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import pytest

from hotlap.report import jsonout


def parsed(text: str) -> Any:
    """Read JSON as a strict reader does: without NaN and infinities."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_document_is_json_whatever_is_in_it() -> None:
    text = jsonout.document(
        {
            "a": float("nan"),
            "b": [float("inf"), 1.5],
            "c": Path("x"),
            "d": "\x1b\ud800",
            "e": {2, 1},
        }
    )
    assert "\x1b" not in text
    data = json.loads(text)
    assert next(iter(data)) == "schema" and data["schema"] == 1
    assert data["a"] is None and data["b"] == [None, 1.5]
    assert data["c"] == "x" and data["e"] == [1, 2]
    with pytest.raises(TypeError, match="no data"):
        jsonout.document({"a": object()})


class Tier(Enum):
    EXACT = "exact"
    WORST = math.nan


class Code(IntEnum):
    FINE = 0


@dataclass(frozen=True)
class Inner:
    """Says itself what is printed of it."""

    hidden: float

    def to_json(self) -> dict[str, Any]:
        return {"shown": self.hidden}


@dataclass(frozen=True)
class Outer:
    inner: Inner
    many: tuple[Inner, ...]
    by_name: dict[Any, Inner]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Tier.EXACT, "exact"),
        (Tier.WORST, None),
        ([Tier.EXACT, {"a": Tier.WORST}], ["exact", {"a": None}]),
        (Code.FINE, 0),
        (True, True),
        (-math.inf, None),
        ({1: {None: math.nan}}, {"1": {"None": None}}),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (OrderedDict(z=1, a=2), {"z": 1, "a": 2}),
        (Counter("aab"), {"a": 2, "b": 1}),
        (
            Outer(Inner(math.nan), (Inner(1.0), Inner(math.inf)), {Path("p"): Inner(2.0)}),
            {
                "inner": {"shown": None},
                "many": [{"shown": 1.0}, {"shown": None}],
                "by_name": {"p": {"shown": 2.0}},
            },
        ),
    ],
)
def test_records_are_data_as_deep_as_they_go(value: Any, expected: Any) -> None:
    assert parsed(jsonout.document({"value": value})) == {"schema": 1, "value": expected}


@pytest.mark.parametrize(
    "value",
    [b"x", bytearray(b"x"), Inner, print, 1j, iter([1])],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("inside", [lambda v: v, lambda v: [v], lambda v: {"a": (v,)}])
def test_what_is_no_data_is_never_guessed(value: Any, inside: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=f"is {type(value).__name__}, which is no data for JSON"):
        jsonout.document({"value": inside(value)})


def test_numbers_come_back_to_the_last_bit() -> None:
    numbers = [0.1, 1e-320, 2**70, -0.0, 1.7976931348623157e308]
    assert [repr(each) for each in parsed(jsonout.document({"n": numbers}))["n"]] == [
        repr(each) for each in numbers
    ]


def test_one_document_is_written_and_it_ends_its_line() -> None:
    stream = io.StringIO()
    jsonout.write({"a": 1}, stream)
    assert parsed(stream.getvalue()) == {"schema": 1, "a": 1}
    assert stream.getvalue().endswith("}\n")


def test_nothing_is_written_of_what_is_no_data() -> None:
    stream = io.StringIO()
    with pytest.raises(TypeError):
        jsonout.write({"a": 1, "b": object()}, stream)
    assert stream.getvalue() == ""
