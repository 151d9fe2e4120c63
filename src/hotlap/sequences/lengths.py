"""`Budget`: sizes of batches that hold at most so many tokens, and bucket lengths to pad to.

Samples are put into ranges of length. A batch of a range holds as many as fit the budget when each
is padded to the end of the range; what is left of a range joins the next longer one. So shapes are
few, and an epoch has the same number of batches whatever its order.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hotlap.errors import UsageError

_WORTH = 4
"""Batches that a range must fill before a shorter one begins: fewer, and the same samples would
meet each other in every epoch."""
_CANDIDATES = 512
_WIDTH = 1.125
"""End of a range over that of the next shorter one, at least: below that padding is no loss."""


def lengths_of(given: Any, data: Any) -> np.ndarray:
    """Return the length of each sample, int64, shape (samples,).

    Args:
        given: a sequence of whole numbers, or a function of a sample; then all are read once.
        data: map-style.

    Raises:
        UsageError: there are more or fewer lengths than samples, or one is no whole number from 1.
    """
    if callable(given):
        given = [given(data[position]) for position in range(len(data))]
    lengths = np.asarray(given)
    if lengths.shape != (len(data),):
        raise UsageError(
            f"the task's lengths has shape {tuple(lengths.shape)}, but data has {len(data)} "
            f"samples. Expected: shape ({len(data)},), one integer per sample; or a function of a "
            "sample that returns one integer."
        )
    if lengths.dtype.kind not in "iu":
        raise UsageError(
            f"the task's lengths has dtype {lengths.dtype}. Expected: one integer per sample, as "
            "in `lengths=[12, 7, 9]`, or a function of a sample that returns one integer."
        )
    if lengths.min() < 1:
        position = int(lengths.argmin())
        raise UsageError(
            f"sample {position} has length {lengths[position]} in the task's `lengths`. Expected: "
            "1 or more. Remove empty samples from the dataset, or correct `lengths`."
        )
    return lengths.astype(np.int64)


class Budget:
    """Batches of at most `tokens` tokens, padding included.

    Args:
        lengths: of each sample, int64, shape (samples,).
        tokens: budget of a batch.
        to: lengths that a batch may be padded to, ascending; to its longest sample if empty.

    Raises:
        UsageError: a sample does not fit the budget, or is longer than all of `to`.
    """

    def __init__(self, lengths: np.ndarray, tokens: int, to: Sequence[int] = ()) -> None:
        self.lengths, self.tokens, self.to = lengths, tokens, tuple(to)
        position = int(lengths.argmax())
        longest = bucket(int(lengths[position]), self.to)
        if longest > tokens:
            padded = f", padded to {longest} as `to` of hotlap.pad says" if self.to else ""
            shorter = (
                f"add a length from {lengths[position]} to {tokens} to `to` of hotlap.pad"
                if lengths[position] <= tokens
                else f"truncate or drop samples with more than {tokens} tokens"
            )
            raise UsageError(
                f"sample {position} has {lengths[position]} tokens{padded}, but "
                f"tokens_per_batch={tokens}. Set tokens_per_batch in the task to {longest} or "
                f"more, or {shorter}."
            )
        self.edges = np.array(self.to) if self.to else _ranges(lengths, tokens)
        """End of each range, ascending."""
        self.range_of = np.searchsorted(self.edges, lengths)
        """Range of each sample, int64, shape (samples,)."""

    @cached_property
    def sizes(self) -> list[int]:
        """Samples of each batch of an epoch, the ranges from short to long."""
        sizes: list[int] = []
        left = 0
        counts = np.bincount(self.range_of, minlength=len(self.edges))
        for edge, count in zip(self.edges.tolist(), counts.tolist(), strict=True):
            left += count
            fits = self.tokens // edge
            # A sample shorter than this range may already have filled it up: none of its own.
            sizes += [fits] * (left // fits if count else 0)
            left = left % fits if count else left
        return [*sizes, left] if left else sizes

    @property
    def most_samples(self) -> int:
        """Samples of the largest batch."""
        return max(self.sizes)

    @cached_property
    def digest(self) -> str:
        """What tells this budget from another: its lengths, tokens and ranges."""
        known = self.lengths.tobytes() + repr((self.tokens, self.edges.tolist())).encode()
        return hashlib.sha256(known).hexdigest()[:16]


def bucket(longest: int, to: Sequence[int]) -> int:
    """Return what a batch with this longest sample is padded to.

    Args:
        longest: length of its longest sample.
        to: bucket lengths, ascending; none for the longest sample itself.

    Raises:
        UsageError: the sample is longer than every bucket.
    """
    if not to:
        return longest
    if longest > to[-1]:
        raise UsageError(
            f"a sample has length {longest}, but `to` of hotlap.pad says at most {to[-1]}. Add a "
            f"length of {longest} or more to `to`, or truncate or drop samples longer than "
            f"{to[-1]}."
        )
    return to[bisect_left(to, longest)]


def buckets(lengths: Any, count: int) -> tuple[int, ...]:
    """Return the bucket lengths that pad least, for `hotlap.pad(..., to=buckets)`.

    Args:
        lengths: of all samples, whole numbers, shape (samples,).
        count: how many buckets; fewer where there are fewer different lengths.

    Raises:
        UsageError: count is no whole number from 1.
    """
    if type(count) is not int or count < 1:
        raise UsageError(
            f"hotlap.buckets(count={count!r}) is not valid. Expected: an integer of 1 or more."
        )
    values, counts = np.unique(np.asarray(lengths), return_counts=True)
    # Many different lengths are rounded up to some hundreds: the search takes their square.
    if len(values) > _CANDIDATES:
        kept = np.linspace(0, len(values) - 1, _CANDIDATES).round().astype(int)[1:]
        counts = np.add.reduceat(counts, np.r_[0, kept[:-1] + 1])
        values = values[kept]
    below = np.r_[0, np.cumsum(counts)]
    # best[j]: fewest tokens for the j shortest lengths; one bucket more with every round.
    best = np.r_[0.0, values * below[1:]]
    starts = []
    for _ in range(min(count, len(values)) - 1):
        # cost[i, j]: the first i in earlier buckets, those up to j in one that ends with j.
        cost = best[:-1, None] + (below[None, 1:] - below[:-1, None]) * values[None, :]
        cost[np.tril_indices(len(values), -1)] = np.inf
        starts.append(cost.argmin(axis=0))
        best = np.r_[0.0, cost.min(axis=0)]
    ends, last = [], len(values)
    for start in reversed(starts):
        ends.append(int(values[last - 1]))
        last = int(start[last - 1])
        if last == 0:
            return tuple(ends[::-1])
    return (int(values[last - 1]), *ends[::-1])


def padded_share(lengths: np.ndarray, sizes: Sequence[int], to: Sequence[int]) -> float:
    """Return the share of an epoch's tokens that are padding.

    Args:
        lengths: of the samples in the order in which they are read.
        sizes: samples of each batch.
        to: see `Budget`.
    """
    counts = np.asarray(sizes)
    longest = np.maximum.reduceat(lengths, np.cumsum(counts) - counts)
    ends = np.asarray(to)[np.searchsorted(to, longest)] if to else longest
    fed = int((ends * counts).sum())
    return 1 - int(lengths.sum()) / fed


def _ranges(lengths: np.ndarray, tokens: int) -> np.ndarray:
    values, counts = np.unique(lengths, return_counts=True)
    edges: list[int] = []
    held = 0
    # From the longest: there a range too many costs most.
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        is_full = edges and held >= _WORTH * (tokens // edges[-1])
        if not edges or (is_full and length * _WIDTH <= edges[-1]):
            edges.append(length)
            held = 0
        held += count
    return np.array(edges[::-1])
