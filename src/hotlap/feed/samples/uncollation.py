"""Inverse of `default_collate`: samples out of a batch again.

Default collation turns numbers and arrays into rows of tensors. What was a number, an array or a
tensor before is told by the kind of the first sample; samples of another kind stay unstacked.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

Kind = Any
"""Nested as the sample is; None where a sample cannot be had back from a stack of them."""

_NUMBERS = (bool, int, float)
_ARRAYS = frozenset(
    np.dtype(name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "float32",
        "float64",
    )
)
_INT64 = 2**63


def kind_of(sample: Any) -> Kind:
    """Return what a sample is made of, None if a stack of such samples could not be undone."""
    kind = type(sample)
    if kind in _NUMBERS:
        return kind if kind is not int or -_INT64 <= sample < _INT64 else None
    if kind is torch.Tensor:
        usable = sample.layout is torch.strided and not sample.requires_grad
        return (kind, sample.dtype, sample.shape, sample.stride()) if usable else None
    if isinstance(sample, np.generic):
        return (np.generic, sample.dtype) if sample.dtype in _ARRAYS else None
    if kind is np.ndarray:
        usable = sample.dtype in _ARRAYS and sample.flags.c_contiguous and sample.ndim > 0
        return (kind, sample.dtype, sample.shape) if usable else None
    if kind is dict:
        parts = tuple((key, kind_of(item)) for key, item in sample.items())
        return None if any(part is None for _, part in parts) else (dict, parts)
    if kind in (list, tuple) or (isinstance(sample, tuple) and hasattr(kind, "_fields")):
        items = tuple(kind_of(item) for item in sample)
        return None if None in items or not items else (kind, items)
    return None


def uncollate(kind: Kind, batch: Any) -> Sequence[Any]:
    """Return the samples, all of `kind`, that default collation made `batch` of."""
    if kind in _NUMBERS:
        return batch.tolist()
    if kind[0] is torch.Tensor:
        return [_laid_out(row, kind[3]) for row in batch.unbind(0)]
    if kind[0] is np.generic:
        return list(batch.numpy())
    if kind[0] is np.ndarray:
        return list(batch.numpy())
    if kind[0] is dict:
        names = [key for key, _ in kind[1]]
        columns = [uncollate(part, batch[key]) for key, part in kind[1]]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    columns = [uncollate(part, column) for part, column in zip(kind[1], batch, strict=True)]
    rows = zip(*columns, strict=True)
    if kind[0] in (list, tuple):
        return [kind[0](row) for row in rows]
    return [kind[0](*row) for row in rows]


def _laid_out(row: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    # Sums over other strides go in another order, and round otherwise.
    if row.stride() == stride:
        return row
    # What was expanded lies in memory once, and can be written once only.
    once = row
    for dimension, step in enumerate(stride):
        if step == 0 and row.shape[dimension] > 1:
            once = once.narrow(dimension, 0, 1)
    laid_out = torch.empty_strided(once.shape, stride, dtype=row.dtype).copy_(once)
    return laid_out.expand(row.shape)
