"""Python values of schedules, optimizers and random states as JSON, and back, to the bit."""

import math
from collections import Counter
from collections.abc import Hashable
from typing import Any

import numpy
import torch

from hotlap.errors import UsageError

_TAG = "__kind__"
_DTYPES = (torch.float32, torch.float64, torch.int64)
_NOT_FINITE = ("nan", "inf", "-inf")


def encode(value: Any, where: str) -> Any:
    """Return the value as JSON has it.

    Args:
        value: numbers, tensors of one number, text, None, and lists, tuples, dicts and counters of
            these.
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
    if isinstance(value, numpy.number):
        return encode(value.item(), where)
    if isinstance(value, torch.Tensor) and value.dim() == 0 and value.dtype in _DTYPES:
        # A learning rate, say.
        return {_TAG: "tensor", "dtype": str(value.dtype), "value": encode(value.item(), where)}
    if isinstance(value, list):
        return [encode(item, where) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "items": [encode(item, where) for item in value]}
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, Counter) else "dict"
        pairs = [[encode(key, where), encode(item, where)] for key, item in value.items()]
        return {_TAG: kind, "pairs": pairs}
    raise UsageError(
        f"{where} holds a {type(value).__name__}, which a checkpoint cannot store. Expected: "
        "numbers, strings, None, scalar tensors, and lists, tuples and dicts of these. Convert the "
        f"{type(value).__name__} to one of these types where your code stores it."
    )


def decode(value: Any) -> Any:
    """Return what was encoded.

    Raises:
        ValueError: it is nothing that `encode` gives.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, rest = value.get(_TAG), {key: item for key, item in value.items() if key != _TAG}
    if kind == "float" and rest.keys() == {"value"} and rest["value"] in _NOT_FINITE:
        return float(rest["value"])
    if kind == "tensor" and rest.keys() == {"value", "dtype"}:
        number = decode(rest["value"])
        dtype = {str(each): each for each in _DTYPES}.get(str(rest["dtype"]))
        if dtype is not None and type(number) in (int, float):
            tensor = torch.tensor(number, dtype=dtype)
            if number != number or tensor.item() == number:
                return tensor
    if kind == "tuple" and rest.keys() == {"items"} and isinstance(rest["items"], list):
        return tuple(decode(item) for item in rest["items"])
    if kind in ("dict", "counter") and rest.keys() == {"pairs"}:
        pairs = [(decode(key), decode(item)) for key, item in _pairs(rest["pairs"])]
        if all(isinstance(key, Hashable) for key, _ in pairs):
            whole = dict(pairs)
            # A key that comes twice is nothing that was written.
            if len(whole) == len(pairs):
                return Counter(whole) if kind == "counter" else whole
    raise ValueError(f"{str(value)[:80]} is not a value of a checkpoint")


def _pairs(given: Any) -> list[Any]:
    if not isinstance(given, list) or any(type(e) is not list or len(e) != 2 for e in given):
        raise ValueError(f"{str(given)[:80]} is not a list of [key, value] pairs of a checkpoint")
    return given
