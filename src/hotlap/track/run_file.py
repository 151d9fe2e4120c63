"""`RunInfo`: what `run.json` says of a run: task, plan, host, versions, code, how it ended."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from hotlap.host.whole_file import write_whole

RUN = "run.json"
SCHEMA = 1
RUNNING, FINISHED, STOPPED, FAILED, KILLED = "running", "finished", "stopped", "failed", "killed"
MEASURED = "measured"
"""Nothing was trained yet: the folder keeps what was found out, see `findings`."""

_KINDS: Mapping[tuple[type, ...], tuple[str, ...]] = {
    (dict,): ("task", "plan", "host", "versions", "code", "process"),
    (list, type(None)): ("command", "resumed"),
    (str,): ("began", "state"),
    (str, type(None)): ("ended", "error"),
}
"""What values may be in the file -> of which keys."""


@dataclass(frozen=True)
class RunInfo:
    """What a run is, beside its numbers."""

    task: Mapping[str, Any] = field(default_factory=dict)
    """What is learned: the recipe's parameters, or the script and its arguments."""
    plan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Technique -> option -> value."""
    host: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Of hotlap, python, torch, cuda and driver; None where there is none."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """`folder`, `commit` and `dirty` of the git repository; empty without one."""
    command: tuple[str, ...] = ()
    began: str = ""
    """As `2026-11-25T21:04:09.120+00:00`."""
    ended: str | None = None
    state: str = RUNNING
    """`running`, `finished`, `stopped` (asked to, and can be resumed), `failed` or `measured`. Read
    back, `killed` for one that is running by the file, and whose process has ended."""
    error: str | None = None
    """Why it failed."""
    resumed: tuple[Mapping[str, Any], ...] = ()
    """`at` and `step` of every process that took the run up again."""
    process: Mapping[str, Any] = field(default_factory=dict)
    """`pid`, `started` and `host` of the process that trains it."""
    schema: int = SCHEMA

    def write(self, folder: Path) -> None:
        """Write `run.json`, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        write_whole(folder / RUN, json.dumps(asdict(self), indent=2, default=str) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "RunInfo | None":
        """Return what a run's file says, None if there is no such file, or it is none of ours.

        Keys of a newer hotlap are ignored.
        """
        try:
            data = json.loads((folder / RUN).read_text())
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(data, dict) or not _is_run(data):
            return None
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        for name in ("command", "resumed"):
            known[name] = tuple(known.get(name) or ())
        info = cls(**known)
        if info.state == RUNNING and not _lives(info.process):
            return replace(info, state=KILLED)
        return info


def _is_run(data: Mapping[str, Any]) -> bool:
    """True if every key of ours has a value of the kind that we write."""
    return all(
        isinstance(data[name], kinds)
        for kinds, names in _KINDS.items()
        for name in names
        if name in data
    )


def now() -> str:
    """Return the time as `run.json` writes it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(began: str) -> float:
    """Return the seconds since a time that `now` gave, 0 if it is none."""
    try:
        return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(began)).total_seconds())
    except (TypeError, ValueError):
        return 0.0


def this_process() -> dict[str, Any]:
    """Return what tells this process from every other one."""
    import socket

    process = psutil.Process()
    return {"pid": process.pid, "started": process.create_time(), "host": socket.gethostname()}


def _lives(process: Mapping[str, Any]) -> bool:
    """True if a process of this host is still the one that `this_process` described.

    Of another host's process nothing is known: it is taken to live.
    """
    import socket

    pid, started = process.get("pid"), process.get("started")
    if process.get("host") != socket.gethostname():
        return True
    try:
        if type(pid) is not int:
            return False
        found = psutil.Process(pid)
        # Clocks that are set move the second by a little. A zombie has ended: only whoever started
        # it has not asked how.
        is_same = abs(found.create_time() - (started or 0)) < 1
        return is_same and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, TypeError, ValueError, OverflowError):
        return False
