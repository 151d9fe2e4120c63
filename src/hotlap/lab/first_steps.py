"""Waits for a trial that reports some steps: for its set-up, then as long as its steps take."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotlap.errors import TrialError
from hotlap.lab.late_start import late_start
from hotlap.lab.trial import Lab, Trial
from hotlap.plan import Plan
from hotlap.trial.protocol import Role
from hotlap.trial.start_watch import STACK_AFTER_S, STACK_FILE

_LEAST_START_UP_S = 60.0
"""Importing torch and reading a data set may take so long on a slow disk."""
_STACK = "stack"
_STACK_S = 1.0
"""How long before its time is over a process notes where it is."""


def start_up_s(seconds: float) -> float:
    """Return what a set-up may take before a trial that has so many seconds for its steps."""
    return max(_LEAST_START_UP_S, seconds) + 2 * seconds


def start(
    lab: Lab, role: Role, plan: Plan | None, folder: Path, set_up_s: float, **options: Any
) -> Trial:
    """Start a trial for `report_of`.

    Args:
        lab: where it is held.
        role: that it plays.
        plan: what is applied, nothing if None.
        folder: of the trial alone.
        set_up_s: seconds that its set-up may take.
        options: of the role.
    """
    watched = {STACK_FILE: str(folder / _STACK), STACK_AFTER_S: max(0.1, set_up_s - _STACK_S)}
    return lab.start(role, plan, folder=str(folder), **watched, **options)


def report_of(
    trial: Trial, folder: Path, set_up_s: float, silence_s: Callable[[float], float]
) -> dict[str, Any]:
    """Return the report of a trial that has taken steps.

    Args:
        trial: that `start` has given.
        folder: as there.
        set_up_s: as there.
        silence_s: called with the seconds of each step that is told, returns how long the next
            message may take.

    Raises:
        TrialError: it crashed, hung, was not set up in time, or took no step.
    """
    try:
        message = trial.message(["step_time", "report"], set_up_s)
    except TrialError as error:
        # Ranks may wait for each other, which the message says.
        if error.reason != "timeout" or trial.ranks.are_there:
            raise
        stack, subject = folder / _STACK, str(trial.lab.subject)
        raise late_start(subject, set_up_s, stack, error.output) from None
    while message["kind"] != "report":
        message = trial.message(["step_time", "report"], silence_s(message["seconds"]))
    if message["steps"] == 0:
        raise trial.exit_error()
    trial.check_exit()
    return message
