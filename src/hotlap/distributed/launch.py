"""Starts the ranks of a run on this machine, ends all if one ends, and starts them again."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hotlap.distributed import processes
from hotlap.distributed.processes import Loss, RankProcess
from hotlap.distributed.ranks import RESTARTS, STORE, TIMEOUT_S
from hotlap.errors import RunError, UsageError
from hotlap.host.probes import usable_cores

_ASKING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that ask a process to end; its exit code is then 128 more than the signal's number."""


def check_devices(count: int, device: str | None) -> None:
    """Refuse a number of devices that is none, or that this machine has not.

    Raises:
        UsageError: it is.
    """
    import torch

    if count < 1:
        raise UsageError(f"--devices {count} is not valid. Expected: 1 or more.")
    kind = (device or "").partition(":")
    if kind[1] and count > 1:
        raise UsageError(
            f"--device {device} names one device, but --devices {count} asks for {count}. Use "
            f"--device {kind[0]}, or remove --devices."
        )
    there = torch.cuda.device_count() if device in (None, "cuda") else 0
    if (there or device == "cuda") and count > there:
        most = f"at most {there}, or " if there else ""
        raise UsageError(
            f"--devices {count} asks for more CUDA devices than torch sees ({there}). Expected: "
            f"{most}--device cpu."
        )


def launch(
    command: Sequence[str],
    count: int,
    *,
    logs: Path | None = None,
    cores: int | None = None,
    timeout_s: float = TIMEOUT_S,
    restarts: int = 0,
    notice: Callable[[str], None] = lambda _: None,
    environ: Mapping[str, str] = os.environ,
    stdout: int | None = None,
) -> int:
    """Run a command once for each rank, and return the exit code of the first one.

    What rank 0 says on standard error is shown, and kept in its log as that of the others.
    Signals that ask this process to end are passed on to all ranks.

    Args:
        command: program and arguments, the same for all.
        count: number of ranks.
        logs: folder of `rank-N.log`; a temporary one if None, which is kept if a rank dies.
        cores: that the ranks share; those that this process can use if None.
        timeout_s: after which a rank gives up waiting for another one; for the message.
        restarts: how often all ranks are started again after one has died. The variable
            `RESTARTS` tells them how often they have been.
        notice: called before each restart, and where a signal to a rank other than the first one
            has ended the run, with the reason, in words.
        stdout: descriptor of rank 0's standard output, this process's if None.
        environ: of the ranks, besides what tells them which one they are.

    Raises:
        RunError: a rank died; the message says which one, and what it said last.
        UsageError: a rank other than the first one refused what was given.
    """
    folder = Path(tempfile.mkdtemp(prefix="hotlap-ranks-")) if logs is None else logs
    folder.mkdir(parents=True, exist_ok=True)
    shared = dict(environ)
    if count > 1:
        threads = max(1, (cores or usable_cores()) // count)
        shared.setdefault("OMP_NUM_THREADS", str(threads))
    words, tried = "", ""
    with _Signals() as signals:
        for number in range(restarts + 1):
            own = {**shared, RESTARTS: str(number)}
            loss = _run_once(command, count, folder, own, signals, stdout)
            if signals.asked is not None and _is_ended_by(loss, signals.asked):
                return 128 + signals.asked
            if loss is None:
                if logs is None:
                    shutil.rmtree(folder, ignore_errors=True)
                return 0
            code = loss.rank.process.returncode
            if not loss.is_hanging and code == 2 and loss.rank.number == 0:
                # It has said what is wrong with the input.
                return code
            words = _describe(loss, timeout_s)
            if not loss.is_hanging and code - 128 in _ASKING:
                # It was asked to end by a signal, and the run with it.
                if loss.rank.number:
                    notice(f"{words}.")
                return code
            if code == 2 and not loss.is_hanging:
                raise UsageError(
                    f"{words}. Exit code 2 means wrong input. Check the end of '{loss.rank.log}' "
                    "for what to change."
                )
            tried = f". The run was restarted {number} times" if number else ""
            if number == restarts or signals.asked is not None:
                break
            notice(f"{words}. Restart {number + 1} of {restarts}, from the last checkpoint.")
    resume = " Start the command with --resume auto to resume from the last checkpoint."
    again = resume if logs is not None else ""
    raise RunError(
        f"{words}{tried}. Check the logs of the ranks for the cause, in '{folder}'.{again}"
    )


def _run_once(
    command: Sequence[str],
    count: int,
    folder: Path,
    environ: Mapping[str, str],
    signals: "_Signals",
    stdout: int | None,
) -> Loss | None:
    """Start all ranks, wait for their end, and return what ended them early, if anything did."""
    ranks: list[RankProcess] = []
    loss = None
    # A new place to meet each time: in the old one are addresses of processes that are gone.
    with tempfile.TemporaryDirectory(prefix="hotlap-store-") as meeting:
        try:
            for number in range(count):
                own = {
                    "RANK": str(number),
                    "WORLD_SIZE": str(count),
                    "LOCAL_RANK": str(number),
                    "LOCAL_WORLD_SIZE": str(count),
                    STORE: str(Path(meeting) / "store"),
                }
                log = folder / f"rank-{number}.log"
                ranks.append(
                    processes.start(command, number, {**environ, **own}, log, stdout=stdout)
                )
                signals.pass_to(ranks[-1].process)
            loss = processes.wait(ranks)
        finally:
            signals.forget()
            processes.end(ranks, loss)
    return loss


def _is_ended_by(loss: Loss | None, number: int) -> bool:
    """True if a rank was ended by a signal that was passed on, before it could handle it."""
    return loss is not None and loss.rank.process.returncode == -number


class _Signals:
    """While entered, passes the signals that ask this process to end on to other processes."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The first signal that came."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            for number in _ASKING:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_to(self, process: "subprocess.Popen[bytes]") -> None:
        """Pass signals on to a process, one that came before it was started, too."""
        self._processes.append(process)
        if self.asked is not None:
            process.send_signal(self.asked)

    def forget(self) -> None:
        """Pass signals on to no process that was given so far."""
        self._processes.clear()

    def _pass_on(self, number: int, frame: object) -> None:
        del frame
        self.asked = self.asked or number
        for process in self._processes:
            process.send_signal(number)


def _describe(loss: Loss, timeout_s: float) -> str:
    rank, code = loss.rank, loss.rank.process.returncode
    said = "" if rank.number == 0 else rank.last_lines
    if loss.is_hanging:
        why = "it was stopped by a signal" if loss.is_stopped else "it was still running"
        late = f"did not answer within {timeout_s:g} s"
        left = "lost its connections to the other ranks, and did not end"
        how = f"{late if loss.is_late else left}: {why}"
        said = ""
    elif code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}"
    so = f". It said last:\n{said}\nAll ranks were ended" if said else ", so all ranks were ended"
    end = "; the stacks of its threads are at the end of its log" if rank.has_stacks else ""
    return f"rank {rank.number} {how}{so}{end}"
