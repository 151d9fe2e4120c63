"""Runs a subject in the role `profile`, and returns what its recorded steps say."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from hotlap.lab import first_steps
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.trace.profile_schema import TRACE, WindowRecord

_SLOWEST = 5.0
"""How many times longer than its first step a recorded one may be before the script is thought to
hang."""
_LEAST_SILENCE_S = 120.0
"""A trace of many operators takes its time to be written, after the last step."""


def record_window(
    lab: Lab,
    kinds: Sequence[str],
    read: Callable[[Path, WindowRecord], None],
    *,
    plan: Plan | None = None,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Record some steps with torch.profiler, in a process of its own.

    Args:
        lab: where the trial is held.
        kinds: what is recorded, see `hotlap.trace.profile_schema`.
        read: called with the trace's file, which is removed afterwards, and what was noted; the
            file is not there if no step could be recorded.
        plan: what is applied, nothing if None.
        seconds: fewer steps are recorded if they take longer.
        progress: told how long it takes, where a step is long.

    Raises:
        TrialError: it crashed, hung, or never trained.
    """
    lab.retry_if_address_in_use(lambda: _record(lab, kinds, read, plan, seconds, progress))


def _record(
    lab: Lab,
    kinds: Sequence[str],
    read: Callable[[Path, WindowRecord], None],
    plan: Plan | None,
    seconds: float,
    progress: Callable[[str], None],
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="profile-", dir=lab.exchange))
    set_up_s, options = first_steps.start_up_s(seconds), {"kinds": list(kinds), "seconds": seconds}
    trial = lab.start("profile", plan, folder=str(folder), **options)

    def silence_s(step_s: float) -> float:
        if step_s > seconds:
            progress(f"a step takes {step_s:.1f} s and cannot be interrupted")
        return seconds + max(_LEAST_SILENCE_S, 10 * _SLOWEST * step_s)

    try:
        first_steps.report_of(trial, set_up_s, silence_s)
        read(folder / TRACE, WindowRecord.read(folder))
    finally:
        trial.kill()
        shutil.rmtree(folder)
