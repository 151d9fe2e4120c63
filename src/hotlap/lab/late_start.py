"""Says where a script was whose set-up was not over in time."""

import re
from pathlib import Path

from hotlap.errors import TrialError
from hotlap.trace.frames import shorten_path
from hotlap.usercode import is_users

_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_MORE = 4
"""Times as large a budget is advised."""


def late_start(subject: str, after_s: float, stack_file: Path, output: str) -> TrialError:
    """Return the error of a script that has taken no step.

    Args:
        subject: as the user typed it.
        after_s: seconds that it had.
        stack_file: see `hotlap.trial.start_watch`.
        output: the last lines that it printed.
    """
    place = _place(stack_file)
    at = f", at {place}" if place else ""
    return TrialError(
        f"`{subject}` has taken no step: its set-up was not over after {after_s:.0f} s{at}. If it "
        f"only needs longer, use --budget {_MORE * after_s:.0f}s; if it hangs, run it alone to "
        "check.",
        reason="timeout",
        output=output,
    )


def _place(stack_file: Path) -> str:
    """Return the user's innermost line of the thread that was started first, empty if unknown."""
    try:
        text = stack_file.read_text()
    except OSError:
        return ""
    # The interpreter writes the newest thread first.
    threads = re.split(r"^(?:Current thread|Thread) ", text, flags=re.MULTILINE)
    for file, line, function in _FRAME.findall(threads[-1]):
        if is_users(file):
            return f"{shorten_path(file)}:{line} ({function})"
    return ""
