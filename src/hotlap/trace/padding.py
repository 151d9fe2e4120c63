"""Finds padding in a batch's arrays: by masks, lengths, or one value at an end of rows. No torch.

A batch is padded where its rows end (or begin) with runs of one value, of different lengths, and
where that value is rare elsewhere, as an id for padding is. Black borders of images, one-hot rows
and constant tensors are none: their value is common in what is left of the rows. Where a tensor of
zeros and ones says the same, or one of lengths, as `pack_padded_sequence` takes them, it is
believed, and the value may be anywhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotlap.trace.memory_schema import SequenceBatch

_LEAST_LENGTH = 4
_RARE = 0.01
"""Share of the positions outside the runs that may hold the value of padding."""
_LEAST_VALUES = 3
"""Different values that a tensor of integers must hold beside padding: zeros and ones alone are
a mask, or labels."""
_MOST_EQUAL = 0.5
"""Share of the features outside the runs that may be equal to the value of padding."""
_FEW_ENDS = 0.5
"""Share of the sequences of known lengths that may end with the value of padding."""
_MOST_ELEMENTS = 2**26
"""Larger tensors are not looked at."""

Named = tuple[str, np.ndarray]


def names_of(batch: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """Give what a nested batch holds, each with the expression that leads to it."""
    if isinstance(batch, Mapping):
        for key, item in batch.items():
            yield from names_of(item, f"{name}[{key!r}]")
    elif isinstance(batch, list | tuple):
        for index, item in enumerate(batch):
            yield from names_of(item, f"{name}[{index}]")
    else:
        yield name, batch


def measure_padding(arrays: Sequence[Named], step: int, where: str) -> list[SequenceBatch]:
    """Return how much of each tensor of a batch is padding, of those that may hold sequences.

    Args:
        arrays: the batch's tensors with their names, in any order.
        step: the step that the batch belongs to, from 1.
        where: the line that asked for it.
    """
    small = [each for each in arrays if 0 < each[1].size <= _MOST_ELEMENTS]
    masks = [(name, array) for name, array in small if _is_mask(array)]
    lengths = [(name, array) for name, array in small if _may_be_lengths(array)]
    found = []
    for name, array in small:
        by_mask = _kept_by_mask(array, masks) or _kept_by_lengths(array, lengths)
        mask, padded = by_mask if by_mask is not None else ("", _padded_by_value(array))
        if padded is not None:
            kept = padded.kept.sum(1)
            samples, length = padded.kept.shape
            row = (samples, length, int(kept.sum()), int(kept.max()), padded.value, mask)
            found.append(SequenceBatch(step, name, where, *row))
        elif _may_be_sequences(array):
            samples, length = array.shape[:2]
            full = (samples, length, samples * length, length)
            found.append(SequenceBatch(step, name, where, *full))
    return found


@dataclass(frozen=True)
class _Padded:
    kept: np.ndarray
    """True where there is no padding, (samples, length)."""
    value: float


def _is_mask(array: np.ndarray) -> bool:
    return array.ndim == 2 and bool(np.isin(array, (0, 1)).all())


def _views(array: np.ndarray) -> Iterator[np.ndarray]:
    """Give an array with its samples first; the second has been (length, samples, ...)."""
    yield array
    yield array.swapaxes(0, 1)


def _kept_by_mask(array: np.ndarray, masks: Sequence[Named]) -> tuple[str, _Padded] | None:
    """Return the mask of a tensor and what it keeps, None if none fits.

    What a mask removes must be one value throughout, at one end of the rows.
    """
    if array.ndim < 2 or array.ndim > 3 or _is_mask(array):
        return None
    for name, mask in masks:
        if mask.shape != array.shape[:2]:
            continue
        for view, seen in zip(_views(array), _views(mask.astype(bool)), strict=True):
            for kept in (seen, ~seen):
                if _is_at_one_end(kept) and _is_constant(view[~kept]):
                    return name, _Padded(kept, float(view[~kept].flat[0]))
    return None


def _may_be_lengths(array: np.ndarray) -> bool:
    return array.ndim == 1 and array.dtype.kind in "iu" and bool((array >= 0).all())


def _kept_by_lengths(array: np.ndarray, lengths: Sequence[Named]) -> tuple[str, _Padded] | None:
    """Return the lengths of a tensor's sequences and what they keep, None if none fit.

    What comes after them must be one value throughout, which few sequences end with: labels are as
    many numbers.
    """
    if array.ndim < 2 or array.ndim > 3 or _is_mask(array):
        return None
    for name, counts in lengths:
        for view in _views(array):
            samples, length = view.shape[:2]
            if counts.size != samples or counts.max() > length:
                continue
            kept = np.arange(length) < counts[:, None]
            if not _is_at_one_end(kept) or not _is_constant(view[~kept]):
                continue
            value = view[~kept].flat[0]
            is_shorter = (counts > 0) & (counts < length)
            if not is_shorter.any():
                # Labels of 0 and 1 beside weights, (samples, 1).
                continue
            last = view[is_shorter, counts[is_shorter] - 1].reshape(int(is_shorter.sum()), -1)
            if (last == value).all(1).mean() < _FEW_ENDS:
                return name, _Padded(kept, float(value))
    return None


def _is_at_one_end(kept: np.ndarray) -> bool:
    """True if every row begins, or every row ends, with what it keeps; not for all or nothing."""
    if kept.all() or not kept.any():
        return False
    counts = kept.sum(1, keepdims=True)
    places = np.arange(kept.shape[1])
    is_first = bool((kept == (places < counts)).all())
    is_last = bool((kept == (places >= kept.shape[1] - counts)).all())
    return is_first or is_last


def _is_constant(values: np.ndarray) -> bool:
    return bool(values.size) and bool((values == values.flat[0]).all())


def _may_be_sequences(array: np.ndarray) -> bool:
    """True for tensors of ids, (samples, length), and of features, (samples, length, features)."""
    is_ids = array.ndim == 2 and array.dtype.kind == "i" and array.itemsize > 1
    return is_ids or (array.ndim == 3 and array.dtype.kind == "f" and array.shape[2] > 1)


def _padded_by_value(array: np.ndarray) -> _Padded | None:
    """Return what is no padding, None if there is none."""
    if not _may_be_sequences(array):
        return None
    for view in _views(array):
        samples, length = view.shape[:2]
        if samples < 2 or length < _LEAST_LENGTH:
            continue
        found = _padded_at_end(view)
        if found is not None:
            return found
        found = _padded_at_end(view[:, ::-1])
        if found is not None:
            return _Padded(found.kept[:, ::-1], found.value)
    return None


def _padded_at_end(rows: np.ndarray) -> _Padded | None:
    """Return what comes before the rows' last runs of one value, None if these are no padding."""
    value = _end_value(rows)
    if value is None:
        return None
    is_value = rows == value
    is_filler = is_value if rows.ndim == 2 else is_value.all(2)
    # Positions from the first of the last run on.
    runs = np.cumprod(is_filler[:, ::-1], axis=1).sum(1)
    length = rows.shape[1]
    kept = np.arange(length) < (length - runs)[:, None]
    is_varied = runs.min() < runs.max() and (runs > 1).sum() > 1
    if not is_varied or is_filler[kept].mean() > _RARE:
        return None
    if rows.ndim == 2:
        is_content = len(np.unique(rows[kept])) >= _LEAST_VALUES
    else:
        # Features are rarely equal to what fills them up; the dark parts of an image are.
        is_content = is_value[kept].mean() < _MOST_EQUAL
    return _Padded(kept, float(value)) if is_content else None


def _end_value(rows: np.ndarray) -> Any:
    """Return the value that most rows end with, None if it is not one for all features."""
    last = rows[:, -1]
    if rows.ndim == 3:
        last = last[(last == last[:, :1]).all(1), 0]
    if not last.size:
        return None
    values, counts = np.unique(last, return_counts=True)
    return values[counts.argmax()]
