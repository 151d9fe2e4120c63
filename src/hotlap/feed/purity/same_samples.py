"""Compares two samples of a data set, of whatever they are made."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from hotlap.feed.purity.same_bytes import same_bytes


def samples_equal(left: Any, right: Any, *, unknown: bool = False) -> bool:
    """Compare two samples, bit by bit where they are made of tensors or arrays.

    Args:
        left: a sample.
        right: another.
        unknown: what to say of two objects of a class that cannot be compared.
    """
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return same_bytes(left, right)
    if hasattr(left, "tobytes") and hasattr(left, "dtype"):
        same_kind = left.dtype == right.dtype and left.shape == right.shape
        return same_kind and left.tobytes() == right.tobytes()
    if isinstance(left, Mapping):
        equal_keys = list(left) == list(right)
        return equal_keys and all(samples_equal(left[k], right[k], unknown=unknown) for k in left)
    if isinstance(left, list | tuple):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(
            samples_equal(a, b, unknown=unknown) for a, b in pairs
        )
    if is_dataclass(left):
        # Its own comparison asks tensors whether they are true.
        return samples_equal(_held_by(left), _held_by(right), unknown=unknown)
    if type(left).__eq__ is object.__eq__:
        return unknown
    return bool(left == right) or bool(left != left and right != right)


def _held_by(sample: Any) -> dict[str, Any]:
    """Return the fields of an object of a dataclass, and what else was set on it."""
    held = {each.name: getattr(sample, each.name, None) for each in fields(sample)}
    return {**held, **getattr(sample, "__dict__", {})}
