"""Runs a subject in the role `memory`, and returns what its first steps allocate."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.lab import first_steps
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.trace.memory_schema import SNAPSHOT, MemoryTrace

_SLOWEST = 5.0
"""How many times longer than its first step a step may be before the script is thought to hang."""


@dataclass(frozen=True)
class MemoryObservation:
    """A trace, and which techniques took effect in it."""

    trace: MemoryTrace
    techniques: Sequence[Mapping[str, str]]
    """{name, state, why}, as the process itself proved it."""
    seconds: float
    """What the trial took, its start included."""


def watch_memory(
    lab: Lab,
    plan: Plan | None = None,
    *,
    seconds: float,
    autocast: str = "",
    snapshot: Path | None = None,
    within_s: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryObservation:
    """Observe the memory of the first steps, in a process of its own.

    Args:
        lab: where the trial is held.
        plan: what is applied to it.
        seconds: fewer steps are observed if they take longer.
        autocast: what is done to autocast, see `hotlap.trial.autocast_gate`; nothing if empty.
        snapshot: where the history of the device's allocator is written; a note of the trace says
            why if it could not be.
        within_s: seconds within which all should be over if steps are short; a minute and more for
            the set-up, and a minute's pause between two steps, if None.
        progress: told how long it takes, where a step is long.

    Raises:
        TrialError: it crashed, hung, or never trained.
    """
    options: dict[str, Any] = {"seconds": seconds, "autocast": autocast}
    if snapshot is not None:
        options["snapshot"] = True
    return lab.retry_if_address_in_use(
        lambda: _watch(lab, plan, options, snapshot, within_s, progress)
    )


def _watch(
    lab: Lab,
    plan: Plan | None,
    options: Mapping[str, Any],
    snapshot: Path | None,
    within_s: float | None,
    progress: Callable[[str], None],
) -> MemoryObservation:
    seconds = options["seconds"]
    folder = Path(tempfile.mkdtemp(prefix="memory-", dir=lab.exchange))
    set_up_s = first_steps.start_up_s(seconds, within_s)
    trial = lab.start("memory", plan, folder=str(folder), **options)

    def silence_s(step_s: float) -> float:
        if step_s > seconds:
            progress(f"a step takes {step_s:.1f} s and cannot be interrupted")
        pause_s = first_steps.pause_s(trial, seconds, within_s)
        return seconds + max(pause_s, 10 * _SLOWEST * step_s)

    try:
        message = first_steps.report_of(trial, set_up_s, silence_s)
        if snapshot is not None and (folder / SNAPSHOT).exists():
            shutil.copyfile(folder / SNAPSHOT, snapshot)
        took = time.monotonic() - trial.started
        return MemoryObservation(MemoryTrace.read(folder), message["techniques"], took)
    finally:
        trial.kill()
        shutil.rmtree(folder)
