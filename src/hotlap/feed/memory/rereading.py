"""Which held samples to read again, and whether they are the same."""

from collections.abc import Callable
from typing import Any

import torch

from hotlap import rng
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


def spread_over(held: Store, count: int, start: int) -> torch.Tensor:
    """Return positions of about `count` held samples, evenly spread, int64, shape (n,).

    Args:
        held: where samples are.
        count: how many.
        start: another number starts with another sample.
    """
    there = held.have.nonzero().flatten()
    stride = max(1, len(there) // count)
    return there[start % stride :: stride]


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
