"""How long a process's threads were ready to run and waited for a core that others had."""

import os
from collections.abc import Mapping

_TASKS = "/proc/self/task"


def waits() -> Mapping[str, int] | None:
    """Return how long each thread of this process has waited so far, in ns.

    Returns:
        None where the system does not say it. Source: Linux, sched-stats.
    """
    try:
        tasks = os.listdir(_TASKS)
    except OSError:
        return None
    found: dict[str, int] = {}
    for task in tasks:
        try:
            # A process may have hundreds of threads, and is asked before and after each turn.
            with open(f"{_TASKS}/{task}/schedstat", "rb", buffering=0) as file:
                _, waited, _ = file.read().split()
        except (OSError, ValueError):
            # A thread that ends, or a kernel without these statistics.
            continue
        found[task] = int(waited)
    return found or None


def seconds_waited(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> float:
    """Return how long the threads that are there after have waited meanwhile, together.

    Args:
        before: what `waits` returned then.
        after: what it returned later.
    """
    if before is None or after is None:
        return 0.0
    return sum(waited - before.get(task, 0) for task, waited in after.items()) / 1e9
