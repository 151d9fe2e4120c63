"""The stacks of a rank's threads, written to its log where one is waited for in vain."""

import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

LOG = "HOTLAP_RANK_LOG"
"""Variable with the log of a rank that `hotlap` has started."""

_logs: list[IO[bytes]] = []
"""The open log of this process; faulthandler needs it open as long as the process lives."""


def write_on_request(environ: Mapping[str, str]) -> None:
    """Let SIGQUIT write the stacks of all threads to this rank's log; without a log, do nothing."""
    if _logs or LOG not in environ:
        return
    # Not standard error, which of the first rank is the user's terminal.
    _logs.append(Path(environ[LOG]).open("ab", buffering=0))  # noqa: SIM115
    faulthandler.register(signal.SIGQUIT, file=_logs[0], all_threads=True)


def write_now(why: str) -> None:
    """Write the stacks of this rank's threads to its log, if it has one."""
    if _logs:
        _logs[0].write(f"{why}\n".encode())
        faulthandler.dump_traceback(file=_logs[0], all_threads=True)


def request(pid: int, log: Path, patience_s: float = 0.5) -> bool:
    """Ask a rank, which may be stopped, for its stacks; return whether it has written something.

    It is let continue: a process that is stopped handles no signal.
    """
    if not _handles(pid, signal.SIGQUIT):
        return False
    before = log.stat().st_size
    try:
        os.kill(pid, signal.SIGQUIT)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if log.stat().st_size > before:
            return True
        time.sleep(0.02)
    return False


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal, as far as the system tells."""
    return _status(pid).get("State", "").startswith(("T", "t"))


def _handles(pid: int, number: int) -> bool:
    """Return whether a process has a handler of a signal, which would end it otherwise."""
    handled = _status(pid).get("SigCgt", "0")
    return bool(int(handled, 16) >> (number - 1) & 1)


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}
