"""`RankProcess`: one rank that was started on this machine; which of several is to blame."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hotlap.distributed import stacks
from hotlap.distributed.ranks import LOST

GRACE_S = 3.0
"""Seconds that the others have to end once a rank has died, and again after SIGTERM."""

_POLL_S = 0.05
_HANGING_GRACE_S = 1.5
"""The same where a rank hangs: it has been waited for already."""
_SHOWN = 12
"""Last lines of a rank's log that are shown."""
_CONSEQUENCES = (LOST, "Connection closed", "Connection reset", "NCCL")
"""What a rank says that has lost another one."""
_LATE = ("did not answer within", "did not join within", "Watchdog caught")
"""What a rank says that has waited for another one in vain."""
_PR_SET_PDEATHSIG = 1


@dataclass
class RankProcess:
    """One rank, from its start to its end."""

    number: int
    process: "subprocess.Popen[bytes]"
    log: Path
    pump: threading.Thread
    """Copies what it says to its log."""
    offset: int = 0
    """Bytes of the log that are of earlier starts."""
    has_stacks: bool = False
    """The stacks of its threads are in its log."""

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def has_died(self) -> bool:
        return self.process.returncode not in (0, None)

    @property
    def last_lines(self) -> str:
        """What it said last."""
        self.pump.join(1.0)
        try:
            own = self.log.read_bytes()[self.offset :]
        except OSError:
            return ""
        return "\n".join(own.decode(errors="replace").rstrip().splitlines()[-_SHOWN:])

    @property
    def has_lost_another(self) -> bool:
        """True if it has died as another one was gone, or did not answer."""
        # NCCL's watchdog ends a process by SIGABRT, once it has said why.
        is_killed = self.process.returncode < 0 and self.process.returncode != -signal.SIGABRT
        return not is_killed and any(words in self.last_lines for words in _CONSEQUENCES)

    @property
    def is_without_fault(self) -> bool:
        """True if it is certain that it died of another one: its log may quote what others say."""
        return self.has_lost_another and any(words in self.last_lines for words in (LOST, *_LATE))

    @property
    def has_waited(self) -> bool:
        """True if it has died as another one did not answer in time."""
        return self.has_lost_another and any(words in self.last_lines for words in _LATE)


@dataclass(frozen=True)
class Loss:
    """Why the ranks of a run are ended."""

    rank: RankProcess
    """The one to blame."""
    is_hanging: bool = False
    """It was still running after the others had lost it."""
    is_late: bool = False
    """The others have waited for it in vain."""
    is_stopped: bool = False
    """A signal had stopped it."""


def start(
    command: Sequence[str], number: int, environ: Mapping[str, str], log: Path, *, again: bool
) -> RankProcess:
    """Start a rank; what it says is added to its log, which begins empty unless it is started
    again. Of rank 0, standard output is this process's, and what it says is shown."""
    if not again:
        log.write_bytes(b"")
    offset = log.stat().st_size
    process = subprocess.Popen(
        command,
        env={**environ, stacks.LOG: str(log.absolute())},
        stdout=None if number == 0 else subprocess.PIPE,
        stderr=subprocess.PIPE if number == 0 else subprocess.STDOUT,
        # Ctrl-C reaches the ranks once, by this process.
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    stream = process.stderr if number == 0 else process.stdout
    pump = threading.Thread(target=_copy, args=(stream, log, number == 0), daemon=True)
    pump.start()
    return RankProcess(number, process, log, pump, offset)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _copy(stream: IO[bytes] | None, log: Path, is_shown: bool) -> None:
    assert stream is not None
    # The rank itself appends the stacks of its threads.
    with stream, log.open("ab", buffering=0) as kept:
        for line in stream:
            kept.write(line)
            # That it has lost another one is said once, with the reason, by who started them.
            if is_shown and sys.stderr is not None and LOST.encode() not in line:
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()


def wait(ranks: Sequence[RankProcess]) -> Loss | None:
    """Wait until all have ended well, or until it is known which one is to blame."""
    while True:
        running = [rank for rank in ranks if rank.is_running]
        if any(rank.has_died for rank in ranks):
            break
        if not running:
            return None
        time.sleep(_POLL_S)
    died = [rank for rank in ranks if rank.has_died]
    # A rank that has lost another one may be seen to end before that one.
    is_late = any(rank.has_waited for rank in died)
    deadline = time.monotonic() + (min(_HANGING_GRACE_S, GRACE_S) if is_late else GRACE_S)
    while running and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        running = [rank for rank in running if rank.is_running]
    died = [rank for rank in ranks if rank.has_died]
    if running and all(rank.is_without_fault for rank in died):
        stopped = [rank for rank in running if stacks.is_stopped(rank.process.pid)]
        late = any(rank.has_waited for rank in died)
        return Loss((stopped or running)[0], True, is_late=late, is_stopped=bool(stopped))
    return Loss(min(died, key=lambda rank: (rank.has_lost_another, rank.number)))


def end(ranks: Sequence[RankProcess], loss: Loss | None = None) -> None:
    """End the ranks that still run, those that hang with the stacks of their threads."""
    is_hanging = loss is not None and loss.is_hanging
    if is_hanging:
        for rank in ranks:
            if rank.is_running:
                rank.has_stacks = stacks.request(rank.process.pid, rank.log)
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [rank for rank in ranks if rank.is_running]
        for rank in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, number)
                # A process that is stopped hears of nothing else.
                os.killpg(rank.process.pid, signal.SIGCONT)
        deadline = time.monotonic() + (min(_HANGING_GRACE_S, GRACE_S) if is_hanging else GRACE_S)
        while time.monotonic() < deadline and any(rank.is_running for rank in left):
            time.sleep(_POLL_S)
    for rank in ranks:
        rank.pump.join(1.0)
