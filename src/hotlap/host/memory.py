"""Total memory, and how much of it is available."""

import re
import sys
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
    if sys.platform != "linux":
        return 0
    text = _STATUS.read_text()
    found = dict(re.findall(r"^(VmHWM|VmRSS):\s+(\d+) kB$", text, re.MULTILINE))
    return max(0, int(found["VmHWM"]) - int(found["VmRSS"])) * 1024


def _of_the_machine() -> tuple[int, int]:
    if sys.platform == "linux":
        text = _MEMINFO.read_text()
        found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", text, re.MULTILINE))
        return int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024
    import psutil

    machine = psutil.virtual_memory()
    return machine.total, machine.available
