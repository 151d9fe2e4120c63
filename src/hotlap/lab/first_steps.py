"""Waits for a trial's report, with time-outs for its set-up and for pauses between its steps."""

import time
from collections.abc import Callable
from typing import Any

from hotlap.errors import TrialError
from hotlap.lab.trial import Trial

_LEAST_START_UP_S = 60.0
"""Importing torch and reading a data set may take so long on a slow disk."""
_IMPORT_S = 30.0
"""Importing torch takes as long there, however little time is left."""
_LONGEST_PAUSE_S, _SHORTEST_PAUSE_S = 60.0, 5.0
_MORE = 4
"""Times as large a budget is advised."""


def start_up_s(seconds: float, within_s: float | None = None) -> float:
    """Return what a set-up may take before a trial that has so many seconds for its steps.

    Args:
        seconds: of its steps.
        within_s: seconds within which all should be over; a minute and more if None.
    """
    if within_s is not None:
        return max(_IMPORT_S, within_s)
    return max(_LEAST_START_UP_S, seconds) + 2 * seconds


def pause_s(trial: Trial, watched_s: float, within_s: float | None) -> float:
    """Return what a script may take between two steps before it is thought to hang.

    Args:
        trial: in which it runs.
        watched_s: seconds of its steps that are still to be watched.
        within_s: seconds of the trial within which all should be over; a minute's pause if None.
    """
    if within_s is None:
        return _LONGEST_PAUSE_S
    left_s = within_s - (time.monotonic() - trial.started) - watched_s
    return min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, left_s))


def report_of(trial: Trial, set_up_s: float, silence_s: Callable[[float], float]) -> dict[str, Any]:
    """Return the report of a trial that has taken steps.

    Args:
        trial: that was just started.
        set_up_s: seconds that its set-up may take.
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
        at = f", at {trial.place}" if trial.place else ""
        raise TrialError(
            f"`{trial.lab.subject}` has taken no step: its set-up was not over after "
            f"{set_up_s:.0f} s{at}. If it only needs longer, use --budget {_MORE * set_up_s:.0f}s; "
            "if it hangs, run it outside of this command to check.",
            reason="timeout",
            output=error.output,
        ) from None
    while message["kind"] != "report":
        message = trial.message(["step_time", "report"], silence_s(message["seconds"]))
    if message["steps"] == 0:
        raise trial.exit_error()
    trial.check_exit()
    return message
