"""`Draws`: random numbers for a batch transform, by a counter: one stream for each sample."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TURNS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_FURTHEST = 2**31


class Draws:
    """What a batch transform draws from: a sample gets the same numbers in whatever batch it is.

    Args:
        state: of the epoch, below 2**64.
        positions: of the batch's samples in the data set, shape (n,).
    """

    def __init__(self, state: int, positions: Sequence[int]) -> None:
        self._state, self._positions = np.uint64(state), positions
        self._calls = 0

    def uniform(self, *shape: int) -> torch.Tensor:
        """Return float32 numbers in [0, 1), shape (n, *shape); others at each call."""
        # As many bits as a float32 holds: rounding never reaches 1.
        return torch.from_numpy(self._bits(shape, 24).astype(np.float32) * np.float32(2**-24))

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return int64 numbers from `low` to `high` - 1, shape (n, *shape); others at each call.

        Raises:
            ValueError: `high` is not above `low`, or further than 2**31 from it.
        """
        span = high - low
        if not 0 < span <= _FURTHEST:
            raise ValueError(
                f"integers({low}, {high}) is not valid. Expected: low < high <= low + 2**31."
            )
        # 32 bits, scaled: no value comes more than once in 2**32 times too often.
        scaled = (self._bits(shape, 32) * np.uint64(span)) >> np.uint64(32)
        return torch.from_numpy(scaled.astype(np.int64)) + low

    def _bits(self, shape: tuple[int, ...], count: int) -> np.ndarray:
        self._calls += 1
        rows = mix_into_state(self._state, np.array(self._positions, dtype=np.uint64))
        rows = mix_into_state(rows, np.uint64(self._calls))
        each = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64)
        values = mix_into_state(rows[:, None], each[None, :])
        return (values >> np.uint64(64 - count)).reshape(len(rows), *shape)


def mix_into_state(state: Any, numbers: Any) -> Any:
    """Return the state, uint64, after a round of `order.derive_seed`; for whole arrays."""
    # Wrapping around is what is wanted, and numpy warns of it only for single numbers.
    with np.errstate(over="ignore"):
        state = state + numbers + _GOLDEN
        for shift, factor in _TURNS:
            state = (state ^ (state >> shift)) * factor
    return state ^ (state >> np.uint64(31))
