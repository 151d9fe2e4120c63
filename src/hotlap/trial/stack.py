"""Writes this process's stack into a file when a signal asks for it, by `faulthandler`.

The interpreter's own handler writes it, also while native code holds the interpreter's lock.
"""

import faulthandler
import signal
from typing import IO

STACK_SIGNAL = int(getattr(signal, "SIGRTMAX", 0)) - 7
"""Asks for the stack; negative where the system has no such signals. Scripts hardly use it."""
_files: list[IO[str]] = []
"""The handler needs its file open."""


def write_stack_when_asked(path: str | None) -> None:
    """Let `STACK_SIGNAL` have this process's stack written.

    Args:
        path: of the file; nothing is done if None.
    """
    if path is not None and STACK_SIGNAL > 0:
        _files.append(open(path, "w"))  # noqa: SIM115
        faulthandler.register(STACK_SIGNAL, file=_files[-1], all_threads=True)
