"""Positions of samples held and missing; which are read again, and whether they are the same."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotlap import rng
from hotlap.feed.memory.place import HostPlace
from hotlap.feed.memory.row_store import RowStore
from hotlap.feed.memory.sample_store import SampleStore

Store = RowStore | SampleStore


def positions_of(indices: Any, length: int) -> torch.Tensor | None:
    """Return a sampler's indices as a tensor, None if they do not name rows.

    Args:
        indices: of one batch.
        length: samples of the data set.
    """
    try:
        index = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return None
    if index.dim() != 1 or index.dtype != torch.int64 or index.numel() == 0:
        return None
    # A list's own minimum is found faster than a tensor's.
    low, high = (min(indices), max(indices)) if type(indices) is list else index.aminmax()
    return index if low >= 0 and high < length else None


def held_positions(held: Store, *, of_others: bool) -> torch.Tensor:
    """Return the positions of all samples that are held, int64, shape (n,).

    Args:
        held: where they are.
        of_others: True to count those that other ranks have read.
    """
    there = held.have.nonzero().flatten()
    return there if of_others else there[~torch.isin(there, held.of_others)]


def spread_over(there: torch.Tensor, count: int, start: int) -> torch.Tensor:
    """Return about `count` of the positions of samples, evenly spread, int64, shape (n,).

    Args:
        there: positions, int64, shape (n,).
        count: how many.
        start: another number starts with another sample.
    """
    stride = max(1, len(there) // count)
    return there[start % stride :: stride]


def missing_of(held: Store, index: torch.Tensor) -> torch.Tensor:
    """Return those of the positions, int64, shape (n,), at which no sample is held."""
    if not held.missing:
        return index[:0]
    missing = index[~held.have[index]]
    if len(missing) and held.common is not None:
        # Another rank may have read them meanwhile.
        held.add_common()
        missing = index[~held.have[index]]
    return missing


def has_of_others(held: Store, index: torch.Tensor) -> bool:
    """Return True if samples that another rank has read are to be served.

    Args:
        held: where samples are; once all are held, nobody looks at every batch any more.
        index: positions of a batch, int64, shape (n,).
    """
    of_others = held.of_others
    return len(of_others) > 0 and bool(not held.missing or torch.isin(index, of_others).any())


def missing_chunks(held: Store, most: int) -> Iterator[torch.Tensor]:
    """Give the positions of the samples that are not held, int64, shape (n,), to be read at once.

    Of several ranks with one copy each begins with its own part, and leaves out what others read.

    Args:
        held: where samples are.
        most: positions given at a time, where memory is no matter.
    """
    missing = (~held.have).nonzero().flatten()
    # How many fit is known once one is held, and whose copy it is.
    yield from missing[:1].split(1)
    if held.common is not None:
        missing = missing.roll(-held.common.number * len(missing) // HostPlace.sharers)
    start = 0
    while start < len(missing):
        chunk = missing[start : start + held.samples_per_read(most)]
        start += len(chunk)
        held.add_common()
        chunk = chunk[~held.have[chunk]]
        if len(chunk):
            yield chunk


def find_difference(held: Store, read: Callable[[Any], Any], index: torch.Tensor) -> str | None:
    """Read held samples under other random states; return what differs, None if nothing does.

    Args:
        held: where they are.
        read: `read(indices)`, by the script's own data set.
        index: their positions, int64, shape (n,).
    """
    with rng.other_random_states():
        before = rng.global_random_states()
        again = read(index.tolist())
        drawn = rng.generator_that_advanced(before)
    if drawn is not None:
        return f"reading a sample draws from {drawn}"
    return held.difference(again, index)
