"""Every exception that hotlap raises, in one tree.

    HotlapError
    |-- UsageError (ValueError)     something the user gave is wrong; command exit code 2
    |   |-- PlanError               a plan file or a technique's options
    |   |-- UnknownName             a technique, finding or error that does not exist
    |   `-- MissingFile             a script, plan or dataset that was not found
    `-- RunError                    the input was fine, the work could not be done; exit code 1
        |-- AttachError             the script ran, but hotlap could not attach to it
        |-- TrialError              a trial crashed, hung, grew too large or never trained
        |-- DoesNotFit              a step ran out of memory, however it was split
        |-- ScratchError            the copy-on-write view of the files could not be made
        |-- StorageError            a checkpoint could not be written
        `-- CheckpointCorrupt       a checkpoint is not what its manifest says

A message says what was given, what is expected, and what to do, in that order. `SignalExit` is no
error: the process was asked to end.
"""

from collections.abc import Iterable

DIFFERS = "WHAT WAS LEARNED DIFFERS"
"""In the reason of what was seen too late: no other one hides it."""


class SignalExit(SystemExit):
    """A signal has asked this process to end; the user's code may be running, and has not."""


class HotlapError(Exception):
    """Base of every error that hotlap raises on purpose."""


class UsageError(HotlapError, ValueError):
    """What the user gave is wrong. Raised before any process starts and any file is written."""


class PlanError(UsageError):
    """A plan names something that does not exist, or gives it a value that is not allowed."""


class UnknownName(UsageError):
    """A name that is not in the list it was looked up in."""


class MissingFile(UsageError):
    """A file that was given and was not found."""


class RunError(HotlapError):
    """The work could not be done, though nothing that the user gave was wrong."""


class AttachError(RunError):
    """The script's process never confirmed that hotlap is attached to it."""


class TrialError(RunError):
    """A trial ended without a measurement.

    Attributes:
        reason: one of ``crashed``, ``timeout``, ``memory``, ``no_training``, ``ended_early``.
        output: the last lines that the script printed, standard error included.
        why: the first sentences of the message: how the trial ended, and what to do.
        shown: what the message shows of `output`, its traceback for one.
        meaning: what the message says that it died of; empty if that is not known.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        output: str = "",
        why: str = "",
        shown: str = "",
        meaning: str = "",
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.output = output
        self.why, self.shown, self.meaning = why or message, shown, meaning


class DoesNotFit(RunError):
    """A step ran out of memory, in micro-batches of every size that may be tried.

    Attributes:
        remedy: what to do, the end of the message. Whoever knows better what would fit empties it.
    """

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{super().__str__()} {self.remedy}".rstrip()


class ScratchError(RunError):
    """The copy-on-write view of the files could not be set up, or this is not Linux."""


class StorageError(RunError):
    """A checkpoint could not be written. What was committed before is as it was."""


class CheckpointCorrupt(RunError):
    """A checkpoint is not what its manifest says: a file is missing, cut, or changed."""


def unknown_name(given: str, known: Iterable[str], what: str) -> str:
    """Return the message that says what was given, what is expected, and the nearest right name.

    >>> unknown_name("residant", ["resident", "threads"], "technique")
    "technique 'residant' is not known. Expected: resident, threads. Did you mean 'resident'?"
    """
    import difflib

    names = sorted(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"{what} '{given}' is not known. Expected: {', '.join(names)}.{hint}"
