"""The largest size that fits: halved until one does, then closed in on by what each trial held."""

from collections.abc import Callable
from dataclasses import dataclass

_MOST_CREEPING = 3
"""Predictions in a row that leave more than half of what there was, before the middle is tried."""


@dataclass(frozen=True)
class Fit:
    """Whether steps in micro-batches of one size fit into memory."""

    size: int
    """Samples of a micro-batch."""
    peak_bytes: int
    """Most bytes held at once; where it did not fit, until then."""
    base_bytes: int = 0
    """Held before the first step."""
    why: str = ""
    """Why it did not fit; empty if it did."""

    @property
    def fits(self) -> bool:
        return not self.why


def find_largest(
    attempt: Callable[[int], Fit], most: int, limit: int, tried: tuple[Fit, ...] = ()
) -> list[Fit]:
    """Return all trials that it took to find the largest size that fits.

    A size that fits, and the next one, which does not, are both among them; unless `most` fits, or
    not even 1 does. Memory is taken to grow with the size.

    Args:
        attempt: makes the trial of one size.
        most: the largest size worth a trial.
        limit: bytes to fit into.
        tried: trials that were made already.
    """
    done = {each.size: each for each in tried}
    low = max((each.size for each in tried if each.fits), default=0)
    high = min((each.size for each in tried if not each.fits), default=most + 1)
    creeping = 0
    while high - low > 1:
        if low == 0:
            # What is too large ends early, and says nothing of what it would have held.
            size = most if high > most else high // 2
        elif creeping >= _MOST_CREEPING:
            size = (low + high) // 2
        else:
            size = min(max(_predict(done, low, limit), low + 1), high - 1)
        done[size] = found = attempt(size)
        width = high - low
        low, high = (size, high) if found.fits else (low, size)
        creeping = creeping + 1 if low > 0 and 2 * (high - low) > width else 0
    return list(done.values())


def largest_of(trials: list[Fit]) -> Fit | None:
    """Return the largest trial that fits, None if none does."""
    return max((each for each in trials if each.fits), key=lambda each: each.size, default=None)


def _predict(done: dict[int, Fit], low: int, limit: int) -> int:
    """Return the size at which memory reaches the limit, if it grows as it did so far."""
    at = done[low]
    below = max((each for size, each in done.items() if size < low), key=_size_of, default=None)
    if below is None:
        before, held = 0, at.base_bytes
    else:
        before, held = below.size, below.peak_bytes
    slope = (at.peak_bytes - held) / (low - before)
    # Where memory does not grow, anything may fit.
    return low + int((limit - at.peak_bytes) / slope) if slope > 0 else 2 * low


def _size_of(fit: Fit) -> int:
    return fit.size
