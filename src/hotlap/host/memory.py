"""Memory of the machine and of this process: total, available, resident, peak; a limit on it."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from hotlap.host import control_groups

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")


def memory(proc: Path = control_groups.PROC) -> tuple[int, int]:
    """Return the bytes of memory there are, and those that can be taken without swapping.

    Of the machine, or of the tightest of the control groups that this process is in.

    Args:
        proc: folder with `cgroup` and `mountinfo` of a process.
    """
    total, available = _of_the_machine()
    for group in control_groups.memory(proc):
        total, available = min(total, group.limit), min(available, group.left)
    return total, available


def available_bytes() -> int:
    """Return the bytes of memory that this process can still take without swapping."""
    return memory()[1]


def transient_bytes() -> int:
    """Return how much more memory this process held at its peak than it holds now, 0 if unknown.

    A training step needs it again, although between two steps it is not to be seen.
    """
    now, peak = resident_bytes()
    return max(0, peak - now)


def resident_bytes() -> tuple[int, int]:
    """Return the bytes that this process holds in memory, and the most that it ever held.

    The peak is of this program alone: `ru_maxrss` also counts the process that started it.
    """
    if sys.platform != "linux":
        import psutil

        now = int(psutil.Process().memory_info().rss)
        return now, now
    found = _status()
    return found["VmRSS"], found["VmHWM"]


def peak_bytes() -> int:
    """Return the most bytes that this process ever held in memory."""
    if sys.platform == "linux" and (peak := _status().get("VmHWM")) is not None:
        return peak
    try:
        import resource
    except ImportError:
        return resident_bytes()[1]
    # Linux, where a sandbox does not say more, counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def swapped_bytes() -> int:
    """Return the bytes of this process that are swapped out, 0 if unknown."""
    return _status().get("VmSwap", 0) if sys.platform == "linux" else 0


@contextlib.contextmanager
def limited_memory(limit: int) -> Iterator[bool]:
    """Let this process take memory of its own up to a limit, libraries and all, while entered.

    What asks for more gets an error at once. Only Linux enforces it, by RLIMIT_DATA, which counts
    writable private memory as soon as it is reserved.

    Args:
        limit: bytes that the process may hold in memory.

    Yields:
        False where this system cannot enforce it.
    """
    if sys.platform != "linux":
        yield False
        return
    import resource

    found = _status()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    # What is reserved already and not held, such as stacks of threads, is not counted again.
    most = found["VmData"] + max(0, limit - found["VmRSS"])
    if before[1] != resource.RLIM_INFINITY:
        most = min(most, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _status() -> dict[str, int]:
    """Return the figures of `/proc/self/status` on memory, in bytes, by name."""
    rows = re.findall(r"^(Vm\w+):\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    return {name: int(size) * 1024 for name, size in rows}


def _of_the_machine() -> tuple[int, int]:
    if sys.platform == "linux":
        text = _MEMINFO.read_text()
        found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
        return int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    import psutil

    machine = psutil.virtual_memory()
    return machine.total, machine.available
