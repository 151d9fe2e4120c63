"""Gathers batches out of rows in memory: one tensor per part of a sample, one row per sample."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress
from typing import Any

import torch

from hotlap.nested import is_plain_list, rebuild

_AHEAD_BYTES = 2**18
"""Gathered at once for several batches: what stays in a core's cache until it is used."""
_FEWEST_AHEAD = 8
"""A tensor is small if this many batches of it may be gathered at once; fewer save nothing."""
_MOST_AHEAD = 64
_ALIGNED = 64
"""Bytes; torch gives a tensor of its own this alignment, and sums may depend on it."""
_ALIGNED_ON_DEVICE = 512
"""The same of a CUDA device (`kMinBlockSize` of its caching allocator)."""
_AT_ONCE_ON_DEVICE = 2**25
"""Bytes that are gathered for several steps: they fit into the cache of a large GPU."""


class BatchGatherer:
    """Gathers what is small in several batches at once; what is large, batch by batch.

    Args:
        spec: structure of a batch.
        rows: the tensors, one row per sample.
        batch: samples of a batch.
    """

    def __init__(self, spec: Any, rows: list[torch.Tensor], batch: int) -> None:
        self._spec, self._rows, self._batch = spec, rows, batch
        sizes = [row[0].numel() * row.element_size() for row in rows]
        # Every batch begins where a tensor of its own would.
        step = math.lcm(*(_ALIGNED // math.gcd(size, _ALIGNED) for size in sizes if size))
        self._padded = -(-batch // step) * step
        most = _AHEAD_BYTES // _FEWEST_AHEAD
        self._is_small = [size * self._padded * len(rows) <= most for size in sizes]
        together = sum(compress(sizes, self._is_small)) * self._padded
        self.count = 0
        """Batches at once, 0 if nothing in a batch is small."""
        if any(self._is_small):
            self.count = min(_AHEAD_BYTES // max(1, together), _MOST_AHEAD)

    def gather(self, order: torch.Tensor, begin: int) -> Iterator[Any]:
        """Give the next batches of `order` that are whole; none if there are none."""
        count = min(self.count, (len(order) - begin) // self._batch)
        if count == 0:
            return iter(())
        parts = order[begin : begin + count * self._batch].view(count, self._batch)
        index = parts
        if self._padded > self._batch:
            beyond = parts[:, :1].expand(count, self._padded - self._batch)
            index = torch.cat([parts, beyond], dim=1)
        index = index.reshape(-1)
        columns = [
            self._gather_part(row, index, count) if is_small else map(_select(row), parts.unbind(0))
            for row, is_small in zip(self._rows, self._is_small, strict=True)
        ]
        batches = zip(*columns, strict=True)
        if is_plain_list(self._spec):
            return map(list, batches)
        return (rebuild(self._spec, iter(leaves)) for leaves in batches)

    def _gather_part(
        self, row: torch.Tensor, index: torch.Tensor, count: int
    ) -> tuple[torch.Tensor, ...]:
        found = row.index_select(0, index).view(count, self._padded, *row.shape[1:])
        # Tensors of their own: a loop may write into one of several views of one tensor, and
        # autograd would refuse.
        return tuple(part.data for part in found[:, : self._batch].unbind(0))


def _select(row: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return partial(row.index_select, 0)


def gatherer(spec: Any, rows: list[torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    """Return a function from positions to their batch."""
    if is_plain_list(spec):
        # What default collation makes of most samples; going through the structure takes longer
        # than some gathers do.
        return lambda index: [row.index_select(0, index) for row in rows]
    return lambda index: rebuild(spec, iter([row.index_select(0, index) for row in rows]))


def gather_steps(
    spec: Any, rows: list[torch.Tensor], positions: torch.Tensor, batch: int, micro: int
) -> Iterator[list[tuple[int, Any]]]:
    """Gather the micro-batches of whole steps on a device, several steps at once where that fits.

    Args:
        spec: structure of a batch.
        rows: the tensors, one row per sample.
        positions: int64, shape (n * batch,), where the rows are.
        batch: samples of a step.
        micro: samples of a micro-batch.
    """
    sizes = [row[0].nbytes for row in rows]
    # Every micro-batch begins where a tensor of its own would: kernels may depend on it.
    begins = [size * samples for size in sizes for samples in (batch, micro)]
    is_even = all(begin % _ALIGNED_ON_DEVICE == 0 for begin in begins)
    several = _AT_ONCE_ON_DEVICE // max(1, sum(sizes) * batch) if is_even else 0
    gather = gatherer(spec, rows)
    for part in positions.split(max(1, several) * batch):
        if several < 2:
            yield [(len(each), gather(each)) for each in part.split(micro)]
            continue
        leaves = [row.index_select(0, part) for row in rows]
        for step in zip(*(leaf.split(batch) for leaf in leaves), strict=True):
            micros = zip(*(leaf.split(micro) for leaf in step), strict=True)
            # `.data`: as in `BatchGatherer`.
            yield [
                (len(parts[0]), rebuild(spec, iter([each.data for each in parts])))
                for parts in micros
            ]
