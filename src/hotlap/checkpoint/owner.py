"""Which process a lock or a file in progress belongs to, and whether it still lives."""

import os
import socket
import time
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PIDS = Path("/proc/self/ns/pid")
_LARGEST_PID = 1 << 31


@dataclass(frozen=True)
class Owner:
    """A process, told from every other one that had its number."""

    host: str
    boot: str
    """Of the machine; empty where it does not say."""
    pid: int
    start: int
    """Of the process, in hundredths of a second of the machine's own count."""
    since: str
    """The same for people."""
    namespace: int = 0
    """Of its number, as containers have one each; 0 where that is not told."""

    @classmethod
    def of_this_process(cls) -> "Owner":
        """Return the owner that this process is."""
        pid = os.getpid()
        begun = time.strftime(
            "%Y-%m-%d %H:%M:%S", time.localtime(psutil.Process(pid).create_time())
        )
        start = start_time_of(pid) or 0
        return cls(socket.gethostname(), boot(), pid, start, begun, pid_namespace())

    @classmethod
    def parse(cls, given: Any) -> "Owner | None":
        """Return the owner that `to_json` wrote, None if it is something else."""
        kinds = {"host": str, "boot": str, "pid": int, "start": int, "since": str, "namespace": int}
        if not isinstance(given, dict):
            return None
        # Older versions did not write it.
        given = {"namespace": 0, **given}
        if given.keys() != kinds.keys():
            return None
        if any(type(given[key]) is not kind for key, kind in kinds.items()):
            return None
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def is_of_this_boot(self) -> bool:
        """True if it is a process of this machine since it was started."""
        if self.boot or boot():
            return self.boot == boot()
        return self.host == socket.gethostname()

    @property
    def is_visible(self) -> bool:
        """True if this process would see it, if it lived: same host, processes numbered alike."""
        is_here = self.is_of_this_boot and self.host == socket.gethostname()
        return is_here and self.namespace in (0, pid_namespace())

    @property
    def lives(self) -> bool:
        """True if a process of this host is still the one that this was."""
        return self.is_of_this_boot and is_alive(self.pid, self.start)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.since}"


def boot() -> str:
    """Return what tells this start of the machine from others, empty if it does not say."""
    return _BOOT.read_text().strip() if _BOOT.exists() else ""


def pid_namespace() -> int:
    """Return what tells one numbering of processes from others, 0 if the system does not say."""
    return _PIDS.stat().st_ino if _PIDS.exists() else 0


def place() -> str:
    """Return eight digits that differ where processes do not see each other."""
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_namespace()}'.encode()):08x}"


def start_time_of(pid: int) -> int | None:
    """Return when a process began, None if it is not there, or has ended and nobody asked."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        stat = Path(f"/proc/{pid}/stat")
        if stat.exists():
            # The name may hold anything, brackets too. Clocks that are set do not change this.
            return int(stat.read_text().rpartition(")")[2].split()[19])
        return int(process.create_time() * 100)
    except (psutil.NoSuchProcess, OSError):
        return None


def is_alive(pid: int, start: int | None = None) -> bool:
    """True if a process is there, and began then if that is said."""
    if not 0 < pid < _LARGEST_PID:
        return False
    found = start_time_of(pid)
    return found is not None and (start is None or found == start)
