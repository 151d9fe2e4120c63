"""Below the traceback that a process ends with: what it died of."""

import atexit
import os
import sys


def explain_at_exit() -> None:
    """Let this process end with an explanation, if it ends with an exception that is known."""
    # A forked child prints its own traceback, and ends without Python's clean-up.
    atexit.register(_explain, os.getpid())


def _explain(pid: int) -> None:
    # Set by the interpreter before it prints a traceback, whoever prints it.
    error = getattr(sys, "last_value", None)
    if os.getpid() != pid or error is None or sys.stderr is None:
        return
    from hotlap.failures import recognize_exception

    known = recognize_exception(error)
    if known is not None:
        sys.stderr.write(f"hotlap: {known.line}\n")
