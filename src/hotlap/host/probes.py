"""Single queries to the system: versions, cores, CPU flags, compiler, load, GPUs by nvidia-smi."""

import contextlib
import csv
import importlib.util
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hotlap.host import control_groups

_SAMPLE_S = 0.1
_TOOL_TIMEOUT_S = 10.0
_VERSION = re.compile(r"^__version__\b.*=\s*['\"](.+)['\"]", re.MULTILINE)
_MIB = 1024**2
_RDMA = Path("/sys/class/infiniband")
_GPU_FIELDS = "index,uuid,name,memory.total,memory.free,compute_cap,driver_version"


def version(package: str) -> str | None:
    """Return the version of an installed package without importing it."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def torch_version() -> str | None:
    """Return `torch.__version__` without importing torch; takes a millisecond, `version` 20."""
    match = _VERSION.search(_about_torch())
    return match[1] if match else version("torch")


def torch_version_of(python: str) -> str | None:
    """Return the same of the torch that another Python would import, None if it finds none."""
    if python == sys.executable:
        return torch_version()
    about = "import importlib.util as u; print(u.find_spec('torch').origin)"
    origin = first_line([python, "-c", about])
    match = _VERSION.search(read(Path(origin).parent / "version.py")) if origin else None
    return match[1] if match else None


def torch_cuda() -> str | None:
    """Return the CUDA version that the installed torch was built for, without importing it."""
    match = re.search(r"^cuda\b.*=\s*['\"]([\d.]+)['\"]", _about_torch(), re.MULTILINE)
    return match[1] if match else None


def core_count() -> int:
    """Return the number of logical cores of the machine."""
    return os.cpu_count() or 1


def affinity() -> int:
    """Return the number of logical cores that this process may be scheduled on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return core_count()


def usable_cores() -> int:
    """Return the cores' worth of time that this process can use: of its affinity, by its quota."""
    allowed, quota = affinity(), control_groups.cpu_quota()
    return max(1, allowed if quota is None else min(allowed, int(quota)))


def shm_bytes() -> int | None:
    """Return the size of /dev/shm, None where there is none."""
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


def memlock_bytes() -> int | None:
    """Return the memory that this process may lock, None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def has_rdma(devices: Path = _RDMA) -> bool:
    """Return whether there is an InfiniBand adapter, or another that accesses memory by itself."""
    return devices.is_dir() and any(devices.iterdir())


def cpu_name() -> str:
    """Return the CPU's model name."""
    match = re.search(r"^model name\s*: (.*)$", read(Path("/proc/cpuinfo")), re.MULTILINE)
    if match:
        return " ".join(match[1].split())
    if sys.platform == "darwin":
        return first_line(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine() or "unknown"


def features(wanted: Collection[str]) -> tuple[str, ...]:
    """Return those of the wanted CPU flags that the machine has, in their order."""
    match = re.search(r"^(?:flags|Features)\s*: (.*)$", read(Path("/proc/cpuinfo")), re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return tuple(flag for flag in wanted if flag in flags)


def compiler() -> str | None:
    """Return the path of the C++ compiler that torch.compile calls on a CPU."""
    default = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX") or default)


def load_average() -> float:
    """Return the average number of runnable processes of the last minute."""
    return os.getloadavg()[0]


def other_load() -> tuple[float, float]:
    """Return how many cores other processes keep busy, and how many the hypervisor took away."""
    load = OtherLoad()
    time.sleep(_SAMPLE_S)
    return load.so_far()


class OtherLoad:
    """How busy the machine is from now on with what is not this process or a child of its."""

    def __init__(self) -> None:
        self._before, self._own_before = _busy_ticks(), _own_seconds()
        self._start = time.perf_counter()

    def so_far(self) -> tuple[float, float]:
        """Return how many cores other processes have kept busy, and how many the hypervisor took
        away, on average. A child counts as this process once it was waited for."""
        after, own_after = _busy_ticks(), _own_seconds()
        if self._before is None or after is None:
            return 0.0, 0.0
        seconds = time.perf_counter() - self._start
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        busy = (after[0] - self._before[0]) / ticks_per_s / seconds
        stolen = (after[1] - self._before[1]) / ticks_per_s / seconds
        return max(0.0, busy - (own_after - self._own_before) / seconds), max(0.0, stolen)


def _own_seconds() -> float:
    """Return the processor seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


def gpus(visible: str | None) -> list[dict[str, Any]]:
    """Return the NVIDIA GPUs that this process may use, by nvidia-smi; none without it.

    Args:
        visible: CUDA_VISIBLE_DEVICES, None if it is not set.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={_GPU_FIELDS}", "--format=csv,noheader,nounits"]
    rows = [row for line in csv.reader(_output(command)) if (row := _gpu(line)) is not None]
    return rows if visible is None else select_visible(rows, visible)


def first_line(command: Sequence[str]) -> str:
    """Return the first line that a tool prints, empty if it fails."""
    return next(iter(_output(command)), "").strip()


def read(path: Path) -> str:
    """Return a small file's text without its last newline, empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _output(command: Sequence[str]) -> list[str]:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TOOL_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def _about_torch() -> str:
    """Return the file that says what the installed torch is, empty without one."""
    # ValueError: a module without a spec was put in torch's place.
    with contextlib.suppress(ValueError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin is not None:
            return read(Path(spec.origin).parent / "version.py")
    return ""


def _busy_ticks() -> tuple[int, int] | None:
    """Return the clock ticks that all cores worked, and those that were stolen, since the start."""
    words = read(Path("/proc/stat")).partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu":
        return None
    user, nice, system, _idle, _waiting, interrupt, soft, stolen = map(int, words[1:9])
    return user + nice + system + interrupt + soft, stolen


def _gpu(line: Sequence[str]) -> dict[str, Any] | None:
    cells = [cell.strip() for cell in line]
    if len(cells) != len(_GPU_FIELDS.split(",")) or not cells[0].isdecimal():
        return None
    index, uuid, name, total, free, capability, driver = cells
    return {
        "index": int(index),
        "uuid": uuid,
        "name": name,
        # Some devices share the machine's memory and answer `[N/A]`.
        "memory_bytes": int(total) * _MIB if total.isdecimal() else 0,
        "memory_free_bytes": int(free) * _MIB if free.isdecimal() else 0,
        "compute_capability": capability,
        "driver": driver,
    }


def select_visible(rows: list[dict[str, Any]], visible: str) -> list[dict[str, Any]]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, up to its first wrong entry."""
    chosen: list[dict[str, Any]] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            # A slice: nvidia-smi's query does not say of which GPU.
            return rows
        found = [
            row
            for row in rows
            if (entry.isdecimal() and row["index"] == int(entry))
            or (entry.startswith("GPU-") and row["uuid"].startswith(entry))
        ]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return chosen
