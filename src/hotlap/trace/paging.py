"""How many pages of memory the system hands to a process in each step. No torch in here."""

_SETTLED = 10
"""Steps after which a run has most of what it needs all the time."""


class Paging:
    """Counts from the tenth step on; where the system does not tell, it counts nothing."""

    def __init__(self) -> None:
        self._steps = 0
        self._begun = (0, 0.0)
        self._ended = (0, 0.0)

    def step_ends(self) -> None:
        """Count one more step."""
        self._steps += 1
        if self._steps == _SETTLED:
            self._begun = _now()
        if self._steps >= _SETTLED:
            self._ended = _now()

    @property
    def faults(self) -> float:
        """Page faults a step."""
        return self._each(0)

    @property
    def system_ms(self) -> float:
        """Milliseconds of the system's own work a step, summed over threads; most of it is pages
        where there are many faults."""
        return 1000 * self._each(1)

    def _each(self, which: int) -> float:
        steps = self._steps - _SETTLED
        return (self._ended[which] - self._begun[which]) / steps if steps > 0 else 0.0


def _now() -> tuple[int, float]:
    try:
        import resource
    except ImportError:
        return 0, 0.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, used.ru_stime
