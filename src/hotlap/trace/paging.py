"""Page faults per step of a process. No torch."""

import time

MANY = 100
"""Page faults a step from which on keeping memory is worth a trial."""
SHARE = 0.03
"""Of the run's time that the system must work for it to be worth a trial."""
SETTLED = 10
"""Steps after which a run has most of what it needs all the time."""


class Paging:
    """Counts from the tenth step on; where the system does not tell, it counts nothing."""

    def __init__(self) -> None:
        self.steps = -SETTLED
        """Steps that count, below 0 before."""
        self._begun = (0, 0.0, 0.0)

    def step_ends(self) -> None:
        """Count one more step."""
        self.steps += 1
        if self.steps == 0:
            self.begin()

    def begin(self) -> None:
        """Count from here on."""
        self._begun = _read_counters()

    def step_means(self) -> tuple[float, float]:
        """Return page faults of a step, and the system's own work as a share of the time.

        The work is that for all threads. Most of it is pages where there are many faults.
        """
        if self.steps <= 0:
            return 0.0, 0.0
        faults, works_s, run_s = (
            now - then for now, then in zip(_read_counters(), self._begun, strict=True)
        )
        return faults / self.steps, works_s / run_s if run_s else 0.0


def _read_counters() -> tuple[int, float, float]:
    """Return page faults, the system's own seconds, and the clock."""
    try:
        import resource
    except ImportError:
        return 0, 0.0, 0.0
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt, used.ru_stime, time.perf_counter()
