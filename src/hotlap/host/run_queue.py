"""How long a process's threads were ready to run and waited for a core that others had."""

from pathlib import Path

_TASKS = Path("/proc/self/task")


def seconds_waited() -> float | None:
    """Return the seconds that the threads of this process have waited so far, together.

    Threads that have ended do not count.

    Returns:
        None where the system does not say it. Source: Linux, sched-stats.
    """
    if not _TASKS.exists():
        return None
    found: list[int] = []
    for task in _TASKS.iterdir():
        try:
            _, waited, _ = (task / "schedstat").read_text().split()
        except (OSError, ValueError):
            # A thread that ends, or a kernel without these statistics.
            continue
        found.append(int(waited))
    return sum(found) / 1e9 if found else None
