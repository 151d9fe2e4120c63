"""Explains a known exception that ends a process or a thread, below its traceback."""

import atexit
import os
import signal
import sys
import threading

_MOST_CHILDREN = 100


def explain_at_exit() -> None:
    """Let this process end with an explanation, if it ends with an exception that is known.

    An exception that ends a thread is explained below that thread's traceback.
    """
    # A forked child prints its own traceback, and ends without Python's clean-up.
    atexit.register(_explain_last, os.getpid())
    _explain_in_threads()


def _explain_last(pid: int) -> None:
    # Set by the interpreter before it prints a traceback, whoever prints it.
    error = getattr(sys, "last_value", None)
    if os.getpid() != pid or error is None:
        return
    if threading.current_thread() is threading.main_thread():
        _stop_hearing_of_children()
    _explain(error)


def _stop_hearing_of_children() -> None:
    """Let no handler raise in the middle of an explanation, as torch's does when a worker ends."""
    # The handler is called once more for each child that has ended meanwhile.
    for _ in range(_MOST_CHILDREN):
        try:
            if signal.getsignal(signal.SIGCHLD) is not None:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        except Exception:
            continue
        return


def _explain_in_threads() -> None:
    # What the script sets later replaces this one, as it would replace Python's own.
    before = threading.excepthook

    def explain_thread(args: threading.ExceptHookArgs) -> None:
        before(args)
        _explain(args.exc_value)

    threading.excepthook = explain_thread


def _explain(error: BaseException | None) -> None:
    # Ctrl-C has nothing to explain, and the interpreter ends with its signal only if nothing was
    # imported since.
    if not isinstance(error, Exception) or sys.stderr is None:
        return
    from hotlap.failures import recognize_exception

    known = recognize_exception(error)
    if known is not None:
        sys.stderr.write(f"hotlap: {known.line}\n")
