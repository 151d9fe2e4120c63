"""Notes where a process is whose training has not begun in time: its stack, in a file.

The interpreter's own watchdog writes it, also while native code holds the interpreter's lock.
"""

import faulthandler
from collections.abc import Callable, Mapping
from typing import IO, Any

from hotlap.trial.channel import Channel

STACK_FILE, STACK_AFTER_S = "stack_file", "stack_after_s"
"""Options of a role: where to, and when."""
_files: list[IO[str]] = []
"""The watchdog needs its file open as long as it waits."""


def note_late_start(options: Mapping[str, Any]) -> None:
    """Have the stack written if no step is taken in time.

    Args:
        options: of the role; nothing is done without these two.
    """
    if STACK_FILE in options:
        _files.append(open(options[STACK_FILE], "w"))  # noqa: SIM115
        faulthandler.dump_traceback_later(options[STACK_AFTER_S], file=_files[-1])


def tell_steps(channel: Channel) -> Callable[[float], None]:
    """Return what tells the parent how long the first steps have taken; then training has begun."""

    def tell(seconds: float) -> None:
        if _files:
            faulthandler.cancel_dump_traceback_later()
            _files.pop().close()
        channel.send("step_time", seconds=seconds)

    return tell
