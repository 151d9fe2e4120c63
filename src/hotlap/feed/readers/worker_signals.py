"""Worker processes ignore signals that their parent handles.

A terminal's Ctrl-C, and what a scheduler sends, reach every process of a job. Workers that ended
by them would take from the run what it needs to finish its step and save.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Iterator
from functools import lru_cache

_NUMBERS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


@contextlib.contextmanager
def starting_workers() -> Iterator[None]:
    """Let processes that are started meanwhile hold their signals back until they are ready."""
    if multiprocessing.get_start_method() == "forkserver":
        # That server may be started here, and would hand the mask on to everybody's processes.
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@lru_cache(maxsize=1)
def leave_signals_to_parent() -> None:
    """In a worker process: take no notice of signals, but end at the second SIGTERM.

    The parent ends its workers itself, and they end once it is gone. What they start has the usual
    signals.
    """
    signal.set_wakeup_fd(-1)
    for number in _NUMBERS:
        signal.signal(number, _end_next_time if number == signal.SIGTERM else _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)


def _do_nothing(number: int, frame: object) -> None:
    del number, frame


def _end_next_time(number: int, frame: object) -> None:
    del frame
    signal.signal(number, signal.SIG_DFL)
