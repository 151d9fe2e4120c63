"""Starts the ranks of a run on this machine, and ends all of them if one ends."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hotlap.distributed.ranks import STORE
from hotlap.errors import RunError, UsageError

GRACE_S = 3.0
"""Seconds that the others have to end once a rank has died, and again after SIGTERM."""

_POLL_S = 0.05
_SHOWN = 12
"""Last lines of a rank's log that are shown."""
_CONSEQUENCES = ("another rank is gone", "Connection closed", "Connection reset", "NCCL")
"""What a rank says that has lost another one."""
_PR_SET_PDEATHSIG = 1


@dataclass
class _Rank:
    number: int
    process: "subprocess.Popen[bytes]"
    log: Path
    pump: threading.Thread


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
            f"--device {device} names one device, and --devices {count} asks for {count}. Use "
            f"--device {kind[0]}, or leave out --devices."
        )
    there = torch.cuda.device_count() if device in (None, "cuda") else 0
    if (there or device == "cuda") and count > there:
        raise UsageError(
            f"--devices {count} asks for more CUDA devices than torch sees: {there}. Expected: at "
            f"most {there}, or --device cpu."
        )


def launch(
    command: Sequence[str],
    count: int,
    *,
    logs: Path | None = None,
    cores: int | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run a command once for each rank, and return the exit code of the first one.

    Rank 0 has this process's standard output; what it says on standard error is shown, and kept in
    its log as that of the others. Signals that ask this process to end are passed on to all ranks.

    Args:
        command: program and arguments, the same for all.
        count: number of ranks.
        logs: folder of `rank-N.log`; a temporary one if None.
        cores: that the ranks share; those of the machine if None.
        environ: of the ranks, besides what tells them which one they are.

    Raises:
        RunError: a rank died; the message says which one, and what it said last.
        UsageError: a rank other than the first one refused what was given.
    """
    folder = Path(tempfile.mkdtemp(prefix="hotlap-ranks-")) if logs is None else logs
    folder.mkdir(parents=True, exist_ok=True)
    threads = max(1, (cores or os.cpu_count() or 1) // count)
    with tempfile.TemporaryDirectory(prefix="hotlap-store-") as meeting, _passing_on() as passed:
        ranks: list[_Rank] = []
        try:
            for number in range(count):
                own = {
                    "RANK": str(number),
                    "WORLD_SIZE": str(count),
                    "LOCAL_RANK": str(number),
                    "LOCAL_WORLD_SIZE": str(count),
                    STORE: str(Path(meeting) / "store"),
                    "OMP_NUM_THREADS": environ.get("OMP_NUM_THREADS", str(threads)),
                }
                ranks.append(_start(command, number, {**environ, **own}, folder))
                passed.append(ranks[-1].process)
            first = _wait(ranks)
        finally:
            _end(ranks)
    if first is None:
        return 0
    code = first.process.returncode
    if first.number == 0 and (code == 2 or code > 128):
        # It has said what is wrong with the input, or which signal it ended on.
        return code
    words = _describe(first, folder)
    if code == 2:
        raise UsageError(words)
    if logs is not None:
        words += " Resume from the last checkpoint with --resume auto."
    raise RunError(words)


def _start(command: Sequence[str], number: int, environ: Mapping[str, str], folder: Path) -> _Rank:
    log = folder / f"rank-{number}.log"
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdout=None if number == 0 else subprocess.PIPE,
        stderr=subprocess.PIPE if number == 0 else subprocess.STDOUT,
        # Ctrl-C reaches the ranks once, by this process.
        start_new_session=True,
        preexec_fn=_die_with_parent,
    )
    stream = process.stderr if number == 0 else process.stdout
    pump = threading.Thread(target=_copy, args=(stream, log, number == 0), daemon=True)
    pump.start()
    return _Rank(number, process, log, pump)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _copy(stream: IO[bytes] | None, log: Path, is_shown: bool) -> None:
    assert stream is not None
    with stream, log.open("wb", buffering=0) as kept:
        for line in stream:
            kept.write(line)
            if is_shown and sys.stderr is not None:
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()


def _wait(ranks: Sequence[_Rank]) -> _Rank | None:
    """Wait until all have ended, or one has died; return the one that is to blame."""
    while True:
        ended = [rank for rank in ranks if rank.process.poll() is not None]
        died = [rank for rank in ended if rank.process.returncode != 0]
        if died:
            break
        if len(ended) == len(ranks):
            return None
        time.sleep(_POLL_S)
    # A rank that has lost another one may be seen to end before that one.
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(rank.process.poll() is None for rank in ranks):
        time.sleep(_POLL_S)
    died = [rank for rank in ranks if rank.process.returncode not in (0, None)]
    return min(died, key=_is_consequence)


def _is_consequence(rank: _Rank) -> tuple[bool, int]:
    rank.pump.join(1.0)
    last = _last_lines(rank.log)
    is_killed = rank.process.returncode < 0
    return not is_killed and any(words in last for words in _CONSEQUENCES), rank.number


def _end(ranks: Sequence[_Rank]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        left = [rank for rank in ranks if rank.process.poll() is None]
        for rank in left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, number)
                # A process that is stopped hears of nothing else.
                os.killpg(rank.process.pid, signal.SIGCONT)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(rank.process.poll() is None for rank in left):
            time.sleep(_POLL_S)
    for rank in ranks:
        rank.pump.join(1.0)


@contextlib.contextmanager
def _passing_on() -> Any:
    """Pass signals that ask this process to end on to the processes in the list that is given."""
    processes: list[subprocess.Popen[bytes]] = []
    before: dict[int, Any] = {}

    def pass_on(number: int, frame: object) -> None:
        del frame
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, pass_on)
    try:
        yield processes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last_lines(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").rstrip().splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_SHOWN:])


def _describe(rank: _Rank, folder: Path) -> str:
    code = rank.process.returncode
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    last = _last_lines(rank.log)
    said = "" if rank.number == 0 or not last else f" It said last:\n{last}\n"
    return (
        f"rank {rank.number} {how}, so all ranks were ended.{said} The logs of the ranks are in "
        f"'{folder}'."
    )
