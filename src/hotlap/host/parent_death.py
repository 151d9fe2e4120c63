"""Lets a new process die with its parent."""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with(parent: int) -> Callable[[], None]:
    """Return what a new process calls before anything else, to be killed when its parent ends.

    Linux only. Source: PR_SET_PDEATHSIG in prctl(2).

    Args:
        parent: the process ID of this process.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the line above.
        if os.getppid() != parent:
            os._exit(1)

    return prepare
