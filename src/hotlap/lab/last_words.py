"""Errors of a trial in words: exit status, why hotlap could not attach, last output."""

import signal
from collections.abc import Sequence

from hotlap.errors import AttachError
from hotlap.lab.subject import Subject
from hotlap.trial.protocol import NOT_IN_COMMAND

_LAST_LINES = 15
_MOST_LINES = 80
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")


def exit_in_words(code: int) -> str:
    """Return how a process ended, from its exit code; a signal's is negative, or above 128."""
    number = signal_of(code)
    if number is not None:
        return f"was ended by signal {number} ({signal.strsignal(number)})"
    return f"ended with exit code {code}"


def signal_of(code: int) -> int | None:
    """Return the signal that ended a process, None if none did: 128 + n is how shells report n."""
    number = -code if code < 0 else code - 128
    return number if number in set(signal.Signals) else None


def attach_error(subject: Subject) -> AttachError:
    """Return what to raise where no process of a subject has said that hotlap is in it."""
    if subject.kind == "command":
        why, edit = NOT_IN_COMMAND, "Give the script that it starts."
    else:
        why = "its Python ignores the environment that hotlap sets (flags -I, -E or -S do that)"
        edit = "Remove these flags."
    return AttachError(f"hotlap could not attach to `{subject}`: {why}. {edit}")


def last_words(lines: Sequence[str]) -> Sequence[str]:
    """Return the last lines of what a script printed; of a traceback that is among them, all."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    first = len(lines) - _LAST_LINES
    while starts:
        start = starts.pop()
        first = min(first, start)
        if not any(line.startswith(_CHAINED) for line in lines[max(0, start - 3) : start]):
            break
    return lines[max(0, first, len(lines) - _MOST_LINES) :]
