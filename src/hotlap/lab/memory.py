"""Runs a script in the role `memory`, and returns what its first steps allocate."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hotlap.lab.observing import LEAST_START_UP_S
from hotlap.lab.trial import Lab
from hotlap.trace.memory_schema import SNAPSHOT, MemoryTrace

_SLOWEST = 5.0
"""How many times longer than its first step a step may be before the script is thought to hang."""
_LEAST_SILENCE_S = 60.0


def watch_memory(
    lab: Lab,
    *,
    seconds: float,
    snapshot: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryTrace:
    """Observe the memory of the first steps, in a process of its own.

    Args:
        lab: where the trial is held.
        seconds: fewer steps are observed if they take longer.
        snapshot: where the history of the device's allocator is written; a note of the trace says
            why if it could not be.
        progress: told how long it takes, where a step is long.

    Raises:
        TrialError: it crashed, hung, or never trained.
    """
    return lab.retry_if_address_in_use(lambda: _watch(lab, seconds, snapshot, progress))


def _watch(
    lab: Lab, seconds: float, snapshot: Path | None, progress: Callable[[str], None]
) -> MemoryTrace:
    folder = Path(tempfile.mkdtemp(prefix="memory-", dir=lab.exchange))
    wanted = {"snapshot": True} if snapshot is not None else {}
    trial = lab.start("memory", None, folder=str(folder), seconds=seconds, **wanted)
    try:
        silence_s = max(LEAST_START_UP_S, seconds) + 2 * seconds
        while (message := trial.message(["step_time", "report"], silence_s))["kind"] != "report":
            step_s = message["seconds"]
            silence_s = seconds + max(_LEAST_SILENCE_S, 10 * _SLOWEST * step_s)
            if step_s > seconds:
                progress(f"a step takes {step_s:.1f} s and cannot be interrupted")
        if message["steps"] == 0:
            raise trial.exit_error()
        trial.check_exit()
        if snapshot is not None and (folder / SNAPSHOT).exists():
            shutil.copyfile(folder / SNAPSHOT, snapshot)
        return MemoryTrace.read(folder)
    finally:
        trial.kill()
        shutil.rmtree(folder)
