"""`LocalWorkers`: the jobs of a search as processes of this machine. No torch."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hotlap.checkpoint.owner import boot, is_alive, start_time_of
from hotlap.errors import UsageError
from hotlap.failures import recognize_output
from hotlap.host.control_groups import out_of_memory_kills
from hotlap.lab.last_words import exit_in_words, last_words
from hotlap.lab.subject import start_module
from hotlap.search.job_order import (
    EXIT_FULL,
    EXIT_STOPPED,
    LOG,
    Order,
    full_disk,
    outcome_path,
    read_outcome,
)
from hotlap.search.state import Job, Outcome

_POLL_S = 0.05
_SAVE_S = 10.0
"""Seconds that a trial gets to save where it stands, when the search is ended."""
_KILL_S = 30.0
_LOG_BYTES = 1 << 16
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Executor(Protocol):
    """Where jobs are done."""

    @property
    def free(self) -> int:
        """How many jobs can be started now."""
        ...

    def start(self, job: Job, order: Order) -> Mapping[str, Any]:
        """Start a job; return its lease, by which another process finds out whether it lives."""
        ...

    def wait(self) -> list[Outcome]:
        """Wait until a job has ended, and return the outcomes; none if nothing is running."""
        ...

    def close(self) -> None:
        """End all jobs, and return once none of them is running."""
        ...


@dataclass
class _Running:
    job: Job
    order: Order
    process: "subprocess.Popen[bytes]"
    kills_before: int

    def end_children(self) -> None:
        """End the processes that the recipe has started: they belong to the trial."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close the pipe of a process that has ended."""
        if self.process.stdin is not None:
            # What it did not read is of no use.
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


class LocalWorkers:
    """Processes of this machine, each a session of its own.

    Args:
        count: processes at a time.
    """

    def __init__(self, count: int) -> None:
        self._running: dict[int, _Running] = {}
        """By slot."""
        self._count = count

    @property
    def free(self) -> int:
        """How many jobs can be started now."""
        return self._count - len(self._running)

    def start(self, job: Job, order: Order) -> Mapping[str, Any]:
        """Start a job; return its lease, by which another process finds out whether it lives."""
        slot = min(set(range(self._count)) - self._running.keys())
        # The recipe may change the current folder.
        recipe = os.path.abspath(os.path.join(order.cwd or "", order.recipe))
        order = replace(order, slot=slot, recipe=recipe, folder=os.path.abspath(order.folder))
        folder = Path(order.folder)
        folder.mkdir(parents=True, exist_ok=True)
        # Else that of an earlier process were taken for this one's, should it die without a word.
        outcome_path(order).unlink(missing_ok=True)
        environment = {**os.environ, **dict.fromkeys(_THREADS, str(order.threads))}
        before = out_of_memory_kills()
        with open(folder / LOG, "ab") as log:
            process = subprocess.Popen(
                start_module("hotlap.search.rung", Path(order.cwd or os.getcwd())),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=order.cwd,
                start_new_session=True,
            )
        self._running[slot] = _Running(job, order, process, before)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # how it ended is found out in `wait`
            # The pipe stays open: its end tells the process that this one has ended.
            process.stdin.write(json.dumps(order.to_json()).encode() + b"\n")
            process.stdin.flush()
        return {"pid": process.pid, "start": start_time_of(process.pid), "boot": boot()}

    def wait(self) -> list[Outcome]:
        """Wait until a job has ended, and return the outcomes; none if nothing is running.

        Raises:
            UsageError: the search asks for what the recipe does not give.
            StorageError: a trial could not be saved.
        """
        while self._running:
            ended = [
                slot
                for slot, each in sorted(self._running.items())
                if each.process.poll() is not None
            ]
            outcomes = []
            for each in map(self._running.pop, ended):
                each.end_children()
                each.close()
                if each.process.returncode == EXIT_STOPPED:
                    # Somebody asked the trial to end, and not the search.
                    self.start(each.job, each.order)
                else:
                    outcomes.append(self._outcome(each))
            if outcomes:
                return outcomes
            time.sleep(_POLL_S)
        return []

    def _outcome(self, ended: _Running) -> Outcome:
        code = ended.process.returncode
        if code == EXIT_FULL:
            raise full_disk(f"'{ended.order.folder}' could not be written")
        found = read_outcome(ended.order, ended.job)
        if found is not None:
            return found
        if code in (-signal.SIGKILL, 128 + signal.SIGKILL) and (
            out_of_memory_kills() > ended.kills_before
        ):
            return Outcome(ended.job, "memory", error="killed: the memory was used up")
        lines = _tail(Path(ended.order.folder) / LOG)
        known = recognize_output("\n".join(lines))
        said = known.line if known is not None else (lines[-1] if lines else "")
        return Outcome(
            ended.job, "crash", error=": ".join(filter(None, [exit_in_words(code), said]))
        )

    def close(self) -> None:
        """End all jobs, and return once none of them is running. They save where they stand."""
        for each in self._running.values():
            each.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + _SAVE_S
        for each in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(max(0.0, until - time.monotonic()))
            # And itself, if it has not ended.
            each.end_children()
            each.process.wait()
            each.close()
        self._running.clear()


def end_orphan(lease: Mapping[str, Any]) -> None:
    """End the process of a lease, if it lives: the search that started it does not.

    Raises:
        UsageError: it cannot be ended.
    """
    pid, start = lease.get("pid"), lease.get("start")
    if not pid or lease.get("boot") != boot():
        return
    until = time.monotonic() + _KILL_S
    while is_alive(pid, start):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if time.monotonic() > until:
            raise UsageError(
                f"process {pid} of an earlier run of this search is still running, {_KILL_S:g} s "
                f"after SIGKILL was sent to it. Wait until `ps -p {pid}` no longer lists it, then "
                "run this `hotlap search` command again."
            )
        time.sleep(_POLL_S)


def _tail(path: Path) -> list[str]:
    """Return the last lines of a log that say why a process ended."""
    with open(path, "rb") as stream:
        stream.seek(max(0, path.stat().st_size - _LOG_BYTES))
        text = stream.read().decode(errors="replace")
    return [line for line in last_words(text.strip().splitlines()) if line.strip()]
