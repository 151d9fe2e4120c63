"""`Every` and `Interval`: how often a run is saved (`500steps`, `10m`), the same on all ranks."""

import re
import time
from dataclasses import dataclass

from hotlap.distributed.reduce import Reduce
from hotlap.engine.state.position import Position
from hotlap.errors import UsageError

_EVERY = re.compile(r"(?P<number>[1-9]\d{0,8})(?P<unit>|steps?|epochs?|s|m|h)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600}
_MOST_STEPS = 100
"""After which the first rank is asked again whether its clock says to save."""


@dataclass(frozen=True)
class Every:
    """How often something is done: one of the three."""

    steps: int | None = None
    epochs: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Every":
        """Read `500`, `500steps`, `2epochs`, `30s`, `10m` or `1h`.

        Raises:
            UsageError: it is none of these.
        """
        match = _EVERY.fullmatch(text.replace(" ", ""))
        if match is None:
            raise UsageError(
                f"save_every='{text}' is not an interval. Expected: a number of steps, or a number "
                "with a unit, as in `500steps`, `2epochs`, `30s`, `10m` or `1h`."
            )
        number, unit = int(match["number"]), match["unit"]
        if unit in _SECONDS:
            return cls(seconds=number * _SECONDS[unit])
        return cls(epochs=number) if unit.startswith("epoch") else cls(steps=number)


class Interval:
    """Says when something is due that is done every so often.

    Args:
        every: how often.
        reduce: the ranks; each of them asks after each step.
    """

    def __init__(self, every: Every, reduce: Reduce) -> None:
        self.every, self._reduce = every, reduce
        self.restart()

    def restart(self) -> None:
        """Begin an interval of time."""
        self._since = time.monotonic()
        # The same on all ranks.
        self._steps, self._asks_at = 0, 0

    def is_due(self, position: Position, *, ends_epoch: bool) -> bool:
        """True if it is due at that position; the same on all ranks."""
        every = self.every
        if every.steps is not None:
            return position.step % every.steps == 0
        if every.epochs is not None:
            return ends_epoch and position.epoch % every.epochs == 0
        return self._is_time(every.seconds or 0)

    def _is_time(self, seconds: float) -> bool:
        """True if the first rank's clock says so; while there is time it is asked rarely."""
        passed = time.monotonic() - self._since
        if self._reduce.world == 1:
            return passed >= seconds
        self._steps += 1
        if self._steps < self._asks_at:
            return False
        # Steps that fit into half of the time that is left, 0 if none is.
        ahead = 0.5 * self._steps * (seconds - passed) / max(passed, 1e-9)
        ahead = min(max(int(ahead), 1), _MOST_STEPS) if passed < seconds else 0
        told = int(self._reduce.sum_numbers([0 if self._reduce.rank else ahead])[0])
        self._asks_at = self._steps + told
        return told == 0
