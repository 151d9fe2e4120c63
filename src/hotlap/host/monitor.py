"""`Monitor`: samples CPU, memory, disk, network and GPU figures of a process and of its host."""

import contextlib
import os
import re
import time
from collections.abc import Iterable
from typing import Any

import psutil

from hotlap.errors import UsageError
from hotlap.host.nvml import PACKAGE, Nvml

CHILDREN_S = 10.0
"""Seconds between two looks for new child processes, which read all of /proc."""

MEANINGS = {
    "cpu_percent": "CPU time of the process and its children; 100 is one core",
    "memory_bytes": "their resident memory; pages that they share count for each of them",
    "disk_read_bytes_per_s": "read by them from storage; what is in the page cache does not count",
    "disk_write_bytes_per_s": "written by them to storage",
    "host_cpu_percent": "share of all cores that are busy, with work of any process",
    "host_memory_percent": "share of the host's memory that is taken",
    "network_received_bytes_per_s": "of the whole host, without what it sends to itself "
    "(loopback): the system counts it for no process",
    "network_sent_bytes_per_s": "of the whole host, without loopback",
    "utilization_percent": "share of the time in which any kernel ran, not of the GPU's units "
    "that worked: 100 % is no proof of work",
    "gpu_memory_bytes": "taken on the GPU, by every process",
    "own_memory_bytes": "of that by the process and its children",
    "power_w": "drawn; far below the limit under full utilization, the kernels do little",
    "temperature_c": "of the GPU",
    "sm_clock_mhz": "clock of the GPU's units",
    "memory_clock_mhz": "clock of its memory",
    "throttle_reasons": "NVML's bits for why clocks are lower than they could be",
}
"""What each figure means; those of a GPU without its number."""
_LOOPBACK = re.compile(r"lo\d*")
"""Names of the interface over which a host talks to itself: Linux, macOS."""


class Monitor:
    """Samples figures of the host; the first sample covers the time since this was made.

    Args:
        pid: of the process, this one if None.
        gpus: what is asked of GPUs, None without.
        watches_process: False for figures of the host and its GPUs only.

    Raises:
        UsageError: there is no such process.
    """

    def __init__(
        self, pid: int | None = None, gpus: Nvml | None = None, *, watches_process: bool = True
    ) -> None:
        try:
            self._root = psutil.Process(pid)
        except (psutil.NoSuchProcess, ValueError):
            raise UsageError(
                f"--pid {pid}: there is no such process. Expected: the number (PID) of a running "
                "process, as `ps` shows it."
            ) from None
        self._gpus, self._watches_process = gpus, watches_process
        self._children: list[psutil.Process] = []
        self._looked_at = float("-inf")
        self._at = time.monotonic()
        self._before: dict[tuple[str, int], float] = {}
        """(name, pid) -> the count before, of what only grows."""
        self._host_cpu = _busy_and_all()
        self._count_processes()
        self._count_network()

    @property
    def has_ended(self) -> bool:
        """True once the process has ended, also if its parent has not waited for it."""
        try:
            return not self._root.is_running() or self._root.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    def sample(self) -> dict[str, float]:
        """Return the figures, by the names in `MEANINGS`. What is not known here is absent."""
        now = time.monotonic()
        seconds = max(now - self._at, 1e-6)
        self._at = now
        memory, grown = self._count_processes()
        found: dict[str, float] = {}
        if self._watches_process:
            found["cpu_percent"] = 100 * grown.get("cpu_s", 0.0) / seconds
            found["memory_bytes"] = memory
        found["host_cpu_percent"] = self._host_percent()
        found["host_memory_percent"] = psutil.virtual_memory().percent
        grown |= self._count_network()
        for name in ("disk_read", "disk_write", "network_received", "network_sent"):
            if name in grown:
                found[f"{name}_bytes_per_s"] = grown[name] / seconds
        if self._gpus is not None:
            found |= self._gpus.sample({each.pid for each in self._processes()})
        return found

    def _host_percent(self) -> float:
        # `psutil.cpu_percent` compares with the last call of the same thread.
        before, self._host_cpu = self._host_cpu, _busy_and_all()
        busy, total = (new - old for new, old in zip(self._host_cpu, before, strict=True))
        return 100 * max(0.0, busy) / total if total > 0 else 0.0

    def _processes(self) -> list[psutil.Process]:
        return [self._root, *self._children]

    def _count_processes(self) -> tuple[float, dict[str, float]]:
        """Return the memory of all processes, and how far their counts have grown."""
        if not self._watches_process:
            return 0.0, {}
        if time.monotonic() - self._looked_at >= CHILDREN_S:
            self._looked_at = time.monotonic()
            with contextlib.suppress(psutil.Error):
                self._children = self._root.children(recursive=True)
        memory, grown, alive = 0.0, dict[str, float](), []
        for process in self._processes():
            try:
                with process.oneshot():
                    memory += process.memory_info().rss
                    for name, count in _counts_of(process):
                        before = self._before.get((name, process.pid))
                        self._before[name, process.pid] = count
                        # A process that is new has counted for an unknown time.
                        if before is not None:
                            grown[name] = grown.get(name, 0.0) + max(0.0, count - before)
            except psutil.Error:
                continue
            alive.append(process.pid)
        self._before = {key: n for key, n in self._before.items() if key[1] in (0, *alive)}
        self._children = [each for each in self._children if each.pid in alive]
        return memory, grown

    def _count_network(self) -> dict[str, float]:
        """Return how many bytes the host has received and sent since the last call."""
        found = psutil.net_io_counters(pernic=True)
        if not found:
            return {}
        counts = [each for name, each in found.items() if not _LOOPBACK.fullmatch(name)]
        grown = {}
        for name, count in (
            ("network_received", sum(each.bytes_recv for each in counts)),
            ("network_sent", sum(each.bytes_sent for each in counts)),
        ):
            before = self._before.get((name, 0))
            self._before[name, 0] = count
            if before is not None:
                grown[name] = max(0.0, count - before)
        return grown


def _busy_and_all() -> tuple[float, float]:
    """Return seconds that the host's cores were busy, and all of their seconds."""
    times = psutil.cpu_times()._asdict()
    # User time holds that of guests already.
    total = sum(times.values()) - times.get("guest", 0) - times.get("guest_nice", 0)
    return total - times["idle"] - times.get("iowait", 0), total


def _counts_of(process: psutil.Process) -> Iterable[tuple[str, float]]:
    times = process.cpu_times()
    yield "cpu_s", times.user + times.system
    # Absent on macOS.
    counters: Any = getattr(process, "io_counters", None)
    if counters is not None:
        with contextlib.suppress(psutil.AccessDenied):
            read = counters()
            yield "disk_read", read.read_bytes
            yield "disk_write", read.write_bytes


def open_gpus(visible: str | None = None) -> tuple[Nvml | None, str]:
    """Return what can be asked of the host's GPUs, and why nothing can, empty if there is none.

    Args:
        visible: CUDA_VISIBLE_DEVICES, that of this process if None.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    try:
        gpus = Nvml(visible)
    except ImportError:
        if not os.path.exists("/proc/driver/nvidia"):
            return None, ""
        return None, f"GPU figures need the package {PACKAGE}: `pip install {PACKAGE}`"
    except OSError as error:
        return None, str(error) if os.path.exists("/proc/driver/nvidia") else ""
    return (gpus, "") if gpus.count else (None, "")


def meaning_of(name: str) -> str:
    """Return what a figure means, empty if it is none of `MEANINGS`.

    >>> meaning_of("gpu0_power_w")
    'drawn; far below the limit under full utilization, the kernels do little'
    """
    if not name.startswith("gpu"):
        return MEANINGS.get(name, "")
    of_gpu = name.partition("_")[2]
    return MEANINGS.get(f"gpu_{of_gpu}", MEANINGS.get(of_gpu, ""))
