"""Finds, stops, continues and measures every process of a trial, whatever its group.

What loses its parent becomes a child of the trial's keeper, so descent from the launcher finds
everything. Source: namespaces(7), PR_SET_CHILD_SUBREAPER in prctl(2), /proc/PID/stat in proc(5).
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hotlap.errors import TrialError

_PROC = Path("/proc")
_HALTED = frozenset("TtZXx")
"""States in which a process computes nothing until it is continued: stopped, traced, dead."""
_UNINTERRUPTIBLE = "D"
_STOP_S = 10.0
"""Seconds until what still starts or continues processes is given up."""
_AGAIN_S = 0.001


@dataclass(frozen=True)
class Member:
    """One process."""

    pid: int
    parent: int
    group: int
    state: str


def members(launcher: int, *, keeper_too: bool) -> list[Member]:
    """Return the launcher of a trial and all that descends from it, as far as it still lives.

    Args:
        launcher: its process ID.
        keeper_too: False where the keeper, a child of the launcher in a group of its own, has to
            go on: it removes a copied folder when hotlap is killed.
    """
    children: dict[int, list[Member]] = {}
    found: list[Member] = []
    for member in _all_processes():
        children.setdefault(member.parent, []).append(member)
        if member.pid == launcher:
            found.append(member)
    for member in found:
        found += children.get(member.pid, ())
    return [each for each in found if keeper_too or not _is_keeper(each, launcher)]


def pids(launcher: int) -> list[int]:
    """Return the process IDs of a launcher and all that descends from it, its own first.

    Empty if it has ended.
    """
    try:
        process = psutil.Process(launcher)
        return [each.pid for each in (process, *process.children(recursive=True))]
    except psutil.NoSuchProcess:
        return []


def held_bytes(pids: Sequence[int], limit_of: Callable[[int], int]) -> int:
    """Return the memory that some processes hold together, in bytes.

    What they share, as after a fork, is counted once for each of them in the resident memory, and
    once in all only where that would be too much: to find out takes long.

    Args:
        pids: of the processes.
        limit_of: returns the bytes that may be held, of those that are.
    """
    held = _sum_over(pids, lambda process: process.memory_info().rss)
    return held if held <= limit_of(held) else _sum_over(pids, _own_share)


def _sum_over(pids: Sequence[int], bytes_of: Callable[[psutil.Process], int]) -> int:
    total = 0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += bytes_of(psutil.Process(pid))
    return total


def _own_share(process: psutil.Process) -> int:
    """Return a process's memory, each page divided by the processes that share it, if known."""
    try:
        found: Any = process.memory_full_info()
    except psutil.AccessDenied:
        found = process.memory_info()
    return getattr(found, "pss", found.rss)


def stop(launcher: int, *, keeper_too: bool) -> None:
    """Stop every process of a trial, and return once none of them computes.

    Raises:
        TrialError: something goes on starting or continuing them.
    """
    _signal_group(launcher, signal.SIGSTOP)
    deadline = time.monotonic() + _STOP_S
    stopped: set[int] = set()
    quiet = 0
    # A process that is handed on to the keeper while the list is made may be in neither place.
    while quiet < 2:
        running = [
            each
            for each in members(launcher, keeper_too=keeper_too)
            if each.state not in _HALTED
            # Waiting for a device; it will stop as soon as it is back.
            and not (each.state == _UNINTERRUPTIBLE and each.pid in stopped)
        ]
        quiet = 0 if running else quiet + 1
        for member in running:
            stopped.add(member.pid)
            _signal(member.pid, signal.SIGSTOP)
        if running:
            if time.monotonic() > deadline:
                raise TrialError(
                    f"its processes could not be paused within {_STOP_S:.0f} s: something starts "
                    "or resumes them. A trial is paused while another one is measured. Run the "
                    "script without the processes that it starts.",
                    reason="crashed",
                    output="",
                )
            time.sleep(_AGAIN_S)


def resume(launcher: int, *, keeper_too: bool) -> None:
    """Continue every process of a trial."""
    # The launcher and its group last: what waits for a child should not see it stopped.
    for member in reversed(members(launcher, keeper_too=keeper_too)):
        _signal(member.pid, signal.SIGCONT)
    _signal_group(launcher, signal.SIGCONT)


def _is_keeper(member: Member, launcher: int) -> bool:
    return member.parent == launcher and member.group == member.pid


def _all_processes() -> list[Member]:
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdecimal():
            # It may have ended since the folder was listed.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"{entry.path}/stat", "rb") as stream:
                    # The name, in parentheses, may hold anything.
                    words = stream.read().rpartition(b")")[2].split()
                state, parent, group = words[0].decode(), int(words[1]), int(words[2])
                found.append(Member(int(entry.name), parent, group, state))
    return found


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _signal_group(launcher: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(launcher, number)
