"""`Naps`: what listens in every step sleeps through most of them, once it has seen enough."""

_AWAKE_ONE_OF = 4
"""Of so many stretches between two looks, one is listened to."""


class Naps:
    """Knows when to sleep, and how many steps were slept through."""

    def __init__(self) -> None:
        self.is_asleep = False
        self._looks = self._since = self._slept = 0

    def look(self, steps: int, *, may_sleep: bool) -> int | None:
        """Fall asleep, wake, or stay as it is.

        Args:
            steps: that were taken so far.
            may_sleep: False if nothing must be missed now.

        Returns:
            The steps that were slept through, 0 if it falls asleep, None if it stays as it is.
        """
        self._looks += 1
        if not may_sleep or self._looks % _AWAKE_ONE_OF == 0:
            return self._end(steps)
        if self.is_asleep:
            return None
        self.is_asleep, self._since = True, steps
        return 0

    def wake(self, steps: int) -> int | None:
        """Be awake until after the next look; see `look`."""
        self._looks = -1
        return self._end(steps)

    def _end(self, steps: int) -> int | None:
        if not self.is_asleep:
            return None
        self.is_asleep = False
        slept = steps - self._since
        self._slept += slept
        return slept

    def estimate(self, count: int, steps: int) -> int:
        """Return about how many there were in all steps of what was counted while awake."""
        awake = self.awake(steps)
        return round(count * steps / awake) if awake else count

    def awake(self, steps: int) -> int:
        """Return how many of so many steps were not slept through."""
        return steps - self._slept - (steps - self._since if self.is_asleep else 0)
