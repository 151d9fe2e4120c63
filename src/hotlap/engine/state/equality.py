"""Compares saved values with the run's own: equal, or of the same type."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch


def is_same(own: Any, saved: Any) -> bool:
    """True if two numbers, words or tensors, or lists of them, are equal, wherever they lie."""
    if isinstance(own, torch.Tensor) or isinstance(saved, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(own).cpu(), torch.as_tensor(saved).cpu()))
    if isinstance(own, list | tuple):
        return len(own) == len(saved) and all(map(is_same, own, saved))
    return own == saved


def is_alike(own: Any, saved: Any) -> bool:
    """True if a value may stand where another one stood: of its kind, and as many."""
    if own is None or isinstance(own, bool):
        # Whoever chooses an implementation changes one into the other.
        return saved is None or isinstance(saved, bool) or (own is None and not _is_table(saved))
    if _is_number(own):
        return _is_number(saved)
    if isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple) or len(own) != len(saved):
            return False
        return all(map(is_alike, own, saved))
    return isinstance(saved, type(own))


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    # Those of numpy are reals as well.
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def is_alike_inside(own: Any, saved: Any) -> bool:
    """As `is_alike`, and tables inside have the same keys where these are names."""
    if isinstance(own, Mapping):
        if not isinstance(saved, Mapping) or type(own) is not type(saved):
            return False
        if all(isinstance(key, str) for key in own):
            return own.keys() == saved.keys() and all(
                is_alike_inside(own[key], saved[key]) for key in own
            )
        return True
    if isinstance(own, list | tuple) and any(map(_is_table, own)):
        if not isinstance(saved, list | tuple) or len(own) != len(saved):
            return False
        return all(map(is_alike_inside, own, saved))
    return is_alike(own, saved)
