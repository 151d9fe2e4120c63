"""Signals a trial that gives no answer to write its stack, and finds the user's line in that."""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from hotlap.trace.frames import shorten_path
from hotlap.trial.stack import STACK_SIGNAL
from hotlap.usercode import is_users

_FRAME = re.compile(r'File "(.+)", line (\d+) in (\S+)')
_WRITTEN_S = 1.0
"""How long the file is waited for."""
_LOOK_S = 0.05


def ask_where(pids: Iterable[int], told: int | None, stack_file: Path) -> str:
    """Return the user's line that a process of a trial is at, empty if it is not known.

    Args:
        pids: the processes of the trial.
        told: the number that the process itself has: in a trial's view it is another one; None if
            it has not said.
        stack_file: where the process writes its stack, see `hotlap.trial.stack`.
    """
    pid = next((pid for pid in pids if _own_number(pid) == told), None)
    if told is None or pid is None or STACK_SIGNAL <= 0 or not stack_file.exists():
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACK_SIGNAL)
    until = time.monotonic() + _WRITTEN_S
    before = ""
    # Written piece by piece: all of it is there once nothing more is added.
    while (text := stack_file.read_text()) != before or not text:
        before = text
        if time.monotonic() > until:
            break
        time.sleep(_LOOK_S)
    return find_place(text)


def find_place(stack: str) -> str:
    """Return the user's innermost line of the thread that was started first, empty if unknown.

    Args:
        stack: as `faulthandler` writes it.
    """
    # The interpreter writes the newest thread first.
    threads = re.split(r"^(?:Current thread|Thread) ", stack, flags=re.MULTILINE)
    for file, line, function in _FRAME.findall(threads[-1]):
        if is_users(file):
            return f"{shorten_path(file)}:{line} ({function})"
    return ""


def _own_number(pid: int) -> int | None:
    """Return the number that a process has in its own namespace, None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        # Other systems have no namespaces.
        return None if Path("/proc/self/status").exists() else pid
    except ProcessLookupError:
        return None
    numbers = re.search(r"^NSpid:\s+(.+)$", status, re.MULTILINE)
    return int(numbers[1].split()[-1]) if numbers else pid
