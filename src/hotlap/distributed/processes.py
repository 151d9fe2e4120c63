"""`RankProcess`: starts, watches and ends processes of ranks, keeps logs, finds who failed."""

import contextlib
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
from hotlap.host.parent_death import dies_with

GRACE_S = 3.0
"""Seconds that the others have to end once a rank has died, and again after SIGTERM."""

_POLL_S = 0.05
_HANGING_GRACE_S = 1.0
"""The same where one has waited for another one in vain: that one has had its time."""
_SHOWN = 12
"""Last lines of a rank's log that are shown."""
_CONSEQUENCES = (LOST, "Connection closed", "Connection reset", "NCCL")
"""What a rank says that has lost another one."""
_LATE = ("did not answer within", "did not join within")
"""What a rank adds that has waited for another one in vain."""
_WATCHDOG = "Watchdog caught collective operation timeout"
"""What NCCL says of it."""


@dataclass
class RankProcess:
    """One rank, from its start to its end."""

    number: int
    process: "subprocess.Popen[bytes]"
    log: Path
    offset: int
    """Bytes of the log that are of earlier starts."""
    pump: threading.Thread | None = None
    """Copies what it says to its log."""
    has_waited: bool = False
    """It has said that another one did not answer in time."""
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
        self.finish_log()
        try:
            own = self.log.read_bytes()[self.offset :]
        except OSError:
            return ""
        return "\n".join(own.decode(errors="replace").rstrip().splitlines()[-_SHOWN:])

    @property
    def has_lost_another(self) -> bool:
        """True if it has died as another one was gone, or did not answer."""
        # NCCL's watchdog ends a process by SIGABRT, once it has said why.
        code = self.process.returncode or 0
        is_killed = code < 0 and code != -signal.SIGABRT
        return not is_killed and any(words in self.last_lines for words in _CONSEQUENCES)

    @property
    def is_without_fault(self) -> bool:
        """True if it is certain that it has lost another one; its log may quote others' words."""
        return self.has_waited or (self.has_lost_another and LOST in self.last_lines)

    def finish_log(self) -> None:
        """Wait until what it has said is in its log; a process that it has started may go on."""
        if self.pump is not None:
            self.pump.join(1.0)

    def copy(self, stream: IO[bytes] | None) -> None:
        """Copy what it says to its log, and of the first rank to standard error."""
        assert stream is not None
        # The rank itself appends the stacks of its threads.
        with stream, self.log.open("ab", buffering=0) as kept:
            for line in stream:
                kept.write(line)
                words = line.decode(errors="replace")
                self.has_waited = self.has_waited or _is_late(words)
                # That it has lost another one is said once, by the process that started them.
                if self.number == 0 and sys.stderr is not None and LOST not in words:
                    sys.stderr.write(words)
                    sys.stderr.flush()


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
    command: Sequence[str],
    number: int,
    environ: Mapping[str, str],
    log: Path,
    *,
    stdout: int | None = None,
) -> RankProcess:
    """Start a rank; what it says is added to its log, which may hold what an earlier run has said.
    Of rank 0, standard output is `stdout`, or this process's, and what it says is shown."""
    log.touch()
    offset = log.stat().st_size
    process = subprocess.Popen(
        command,
        env={**environ, stacks.LOG: str(log.absolute())},
        stdout=stdout if number == 0 else subprocess.PIPE,
        stderr=subprocess.PIPE if number == 0 else subprocess.STDOUT,
        # Ctrl-C reaches the ranks once, by this process.
        start_new_session=True,
        preexec_fn=dies_with(os.getpid()) if sys.platform == "linux" else None,
    )
    rank = RankProcess(number, process, log, offset)
    stream = process.stderr if number == 0 else process.stdout
    rank.pump = threading.Thread(target=rank.copy, args=(stream,), daemon=True)
    rank.pump.start()
    return rank


def _is_late(line: str) -> bool:
    return _WATCHDOG in line or (LOST in line and any(words in line for words in _LATE))


def wait(ranks: Sequence[RankProcess]) -> Loss | None:
    """Wait until all have ended well, or until it is known which one is to blame."""
    while True:
        # Asked first: what ends between the two questions is seen to have died.
        is_running = [rank.is_running for rank in ranks]
        if any(rank.has_died or rank.has_waited for rank in ranks):
            break
        if not any(is_running):
            return None
        time.sleep(_POLL_S)
    # A rank that has lost another one may be seen to end before that one.
    is_late = any(rank.has_waited for rank in ranks)
    _wait_for(ranks, min(_HANGING_GRACE_S, GRACE_S) if is_late else GRACE_S)
    running = [rank for rank in ranks if rank.is_running and not rank.has_waited]
    lost = [rank for rank in ranks if rank.has_died or rank.has_waited]
    if running and all(rank.is_without_fault for rank in lost):
        stopped = [rank for rank in running if stacks.is_stopped(rank.process.pid)]
        is_late = any(rank.has_waited for rank in ranks)
        return Loss((stopped or running)[0], True, is_late=is_late, is_stopped=bool(stopped))
    # All of them may have waited for each other: they are about to end.
    if not any(rank.has_died for rank in ranks):
        _wait_for(ranks, GRACE_S, also_waited=True)
    died = [rank for rank in ranks if rank.has_died] or list(ranks)
    return Loss(min(died, key=lambda rank: (rank.has_lost_another, rank.number)))


def _wait_for(ranks: Sequence[RankProcess], seconds: float, *, also_waited: bool = False) -> None:
    """Wait until all have ended, but for those that have waited in vain and say so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(rank.is_running and (also_waited or not rank.has_waited) for rank in ranks):
            return
        time.sleep(_POLL_S)


def end(ranks: Sequence[RankProcess], loss: Loss | None = None) -> None:
    """End the ranks that still run; if one hangs, with the stacks of its threads."""
    signals = [signal.SIGTERM, signal.SIGKILL]
    if loss is not None and loss.is_hanging:
        # It does nothing that could be ended in order.
        signals = [signal.SIGKILL]
        for rank in ranks:
            if rank.is_running and not rank.has_waited:
                rank.has_stacks = stacks.request(rank.process.pid, rank.log)
    for number in signals:
        left = [rank for rank in ranks if rank.is_running]
        for rank in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, number)
                # A process that is stopped hears of nothing else.
                os.killpg(rank.process.pid, signal.SIGCONT)
        _wait_for(left, GRACE_S, also_waited=True)
    for rank in ranks:
        rank.finish_log()
