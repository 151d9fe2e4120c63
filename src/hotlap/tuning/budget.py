"""`Budget`: a tuning's clock: seconds left, what did not fit, the `--budget` that would do."""

import math
import time
from dataclasses import dataclass, field


@dataclass
class Budget:
    """A clock that runs out.

    Args:
        seconds: how long everything may take together.
    """

    seconds: float
    started: float = field(default_factory=time.monotonic)
    not_reached: list[str] = field(default_factory=list)
    """What was left out because it would not have fitted, in words."""
    short_s: float = 0.0
    """Seconds that are known to be missing."""

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        return self.seconds - self.spent

    def deadline(self, keep_s: float) -> float:
        """Return the moment, as `time.monotonic()` counts, at which only `keep_s` are left."""
        return self.started + self.seconds - keep_s

    def ask(self, needed_s: float) -> str:
        """Note that `needed_s` more would be of use, and return the option that gives them."""
        self.short_s = max(self.short_s, needed_s)
        return self.option

    @property
    def option(self) -> str:
        """The `--budget` that would do, as far as is known; whole minutes."""
        return f"--budget {math.ceil((self.seconds + self.short_s) / 60)}m"

    def affords(self, what: str, needed_s: float) -> bool:
        """True if `needed_s` fit; else `what` is noted as not reached."""
        if self.left >= needed_s:
            return True
        self.ask(needed_s - self.left)
        self.not_reached.append(f"{what} (about {needed_s:.0f} s, {max(0, self.left):.0f} s left)")
        return False
