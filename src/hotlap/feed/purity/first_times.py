"""Median duration of an action, from the first times that it ran."""

from statistics import median


class FirstTimes:
    """One time that was interrupted does not count more than the others."""

    ENOUGH = 64
    """Later times are counted only."""

    def __init__(self) -> None:
        self.count = 0
        self._first: list[float] = []

    def add(self, seconds: float) -> None:
        """Count one more."""
        self.count += 1
        if self.count <= self.ENOUGH:
            self._first.append(seconds)

    @property
    def usual(self) -> float:
        """The median, in seconds."""
        return median(self._first)
