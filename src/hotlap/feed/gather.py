"""Batches out of rows in memory: one tensor for each part of a sample, one row for each sample."""

import math
from collections.abc import Callable
from typing import Any

import torch

_AHEAD_BYTES = 2**18
"""Gathered at once for several small batches: what stays in a core's cache until it is used."""
_MOST_AHEAD = 64
_ALIGNED = 64
"""Bytes; torch gives a tensor of its own this alignment, and sums may depend on it."""


class Several:
    """Gathers several small batches at once.

    Args:
        spec: structure of a batch.
        rows: the tensors, one row per sample.
        batch: samples of a batch.
    """

    def __init__(self, spec: Any, rows: list[torch.Tensor], batch: int) -> None:
        self.spec, self.rows, self.batch = spec, rows, batch
        sizes = [row[0].numel() * row.element_size() for row in rows]
        # Every batch begins where a tensor of its own would.
        step = math.lcm(*(_ALIGNED // math.gcd(size, _ALIGNED) for size in sizes if size))
        self.padded = -(-batch // step) * step
        self.count = min(_AHEAD_BYTES // max(1, self.padded * sum(sizes)), _MOST_AHEAD)

    def gather(self, order: torch.Tensor, begin: int) -> list[Any]:
        """Return the next batches of `order` that are whole; none if there are none."""
        count = min(self.count, (len(order) - begin) // self.batch)
        if count == 0:
            return []
        index = order[begin : begin + count * self.batch].view(count, self.batch)
        if self.padded > self.batch:
            beyond = index[:, :1].expand(count, self.padded - self.batch)
            index = torch.cat([index, beyond], dim=1)
        index = index.reshape(-1)
        columns = [
            row.index_select(0, index)
            .view(count, self.padded, *row.shape[1:])[:, : self.batch]
            .unbind(0)
            for row in self.rows
        ]
        if _is_plain_list(self.spec):
            return [list(leaves) for leaves in zip(*columns, strict=True)]
        return [rebuild(self.spec, iter(leaves)) for leaves in zip(*columns, strict=True)]


def flatten(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Append the tensors of a nested batch to `leaves`; return its structure, None if unusable."""
    if type(value) is torch.Tensor and not value.requires_grad:
        leaves.append(value)
        return "tensor"
    # A subclass may be made in ways that its contents do not show.
    if type(value) is dict:
        parts = {key: flatten(item, leaves) for key, item in value.items()}
        return None if None in parts.values() else (type(value), tuple(parts.items()))
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        items = tuple(flatten(item, leaves) for item in value)
        return None if None in items else (type(value), items)
    return None


def _is_plain_list(spec: Any) -> bool:
    return type(spec) is tuple and spec[0] is list and set(spec[1]) == {"tensor"}


def gatherer(spec: Any, rows: list[torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Return a function from positions to their batch."""
    if _is_plain_list(spec):
        # What default collation makes of most samples; going through the structure takes longer
        # than some gathers do.
        return lambda index: [row.index_select(0, index) for row in rows]
    return lambda index: rebuild(spec, iter([row.index_select(0, index) for row in rows]))


def rebuild(spec: Any, leaves: Any) -> Any:
    """Make a nested batch of that structure from an iterator over its tensors."""
    if spec == "tensor":
        return next(leaves)
    kind, parts = spec
    if kind is list or kind is tuple:
        return kind([next(leaves) if part == "tensor" else rebuild(part, leaves) for part in parts])
    if issubclass(kind, dict):
        return kind({key: rebuild(part, leaves) for key, part in parts})
    return kind(*[rebuild(part, leaves) for part in parts])
