"""Hyperparameters of an optimizer's parameter groups as plain values."""

import re
from typing import Any

import torch

from hotlap.trial import digest

IMPLEMENTATION = ("foreach", "fused", "capturable", "differentiable")
"""Entries of an optimizer's groups that say how it computes, not what."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def group_hyperparameters(optimizer: Any) -> list[dict[str, Any]]:
    """Return every hyperparameter of every group, as plain values."""
    left_out = {"params", *IMPLEMENTATION}
    return [
        {key: _as_plain(value) for key, value in group.items() if key not in left_out}
        for group in optimizer.param_groups
    ]


def _as_plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.item() if value.numel() == 1 else digest.of_tensor(value)
    if isinstance(value, list | tuple):
        return [_as_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, map(_as_plain, value)))
    if isinstance(value, int | float | str | bool | type(None)):
        return value
    # The text of a function, or of an object without one of its own, contains its address.
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{getattr(value, '__module__', '')}:{name}"
    return _ADDRESS.sub("", repr(value))
