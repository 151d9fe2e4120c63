"""How long a process's threads were ready to run and waited for a core that others had."""

import os

_TASKS = "/proc/self/task"


def seconds_waited() -> float | None:
    """Return the seconds that the threads of this process have waited so far, together.

    Threads that have ended do not count.

    Returns:
        None where the system does not say it. Source: Linux, sched-stats.
    """
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return None
    found: list[int] = []
    for task in tasks:
        try:
            # A process may have hundreds of threads, and is asked before and after each turn.
            with open(f"{_TASKS}/{task}/schedstat", "rb", buffering=0) as file:
                _, waited, _ = file.read().split()
        except (OSError, ValueError):
            # A thread that ends, or a kernel without these statistics.
            continue
        found.append(int(waited))
    return sum(found) / 1e9 if found else None
