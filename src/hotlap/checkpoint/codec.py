"""Python values of schedules, optimizers and random states as JSON, and back, to the bit."""

import math
from collections import Counter
from typing import Any

from hotlap.errors import UsageError

_TAG = "__kind__"


def encode(value: Any, where: str) -> Any:
    """Return the value as JSON has it.

    Args:
        value: numbers, text, None, and lists, tuples, dicts and counters of these.
        where: what it belongs to, for the message.

    Raises:
        UsageError: something in it is no such value.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        if isinstance(value, float) and not math.isfinite(value):
            return {_TAG: "float", "value": repr(value)}
        # numpy has numbers that are floats as well, and that JSON does not know.
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, list):
        return [encode(item, where) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [encode(item, where) for item in value]}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        pairs = [[encode(key, where), encode(item, where)] for key, item in value.items()]
        return {_TAG: kind, "pairs": pairs}
    raise UsageError(
        f"{where} holds a {type(value).__name__}, which a checkpoint cannot keep. Allowed: "
        "numbers, text, and lists, tuples and dicts of these."
    )


def decode(value: Any) -> Any:
    """Return what was encoded."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind = value[_TAG]
    if kind == "float":
        return float(value["value"])
    if kind == "tuple":
        return tuple(decode(item) for item in value["items"])
    pairs = {decode(key): decode(item) for key, item in value["pairs"]}
    return Counter(pairs) if kind == "counter" else pairs
