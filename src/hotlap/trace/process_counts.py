"""What a process does besides its steps: garbage is collected, functions are compiled. No torch."""

import gc
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.host.memory import peak_bytes, swapped_bytes


@dataclass(frozen=True)
class ProcessCounts:
    """What was counted in some steps, all of them together; the first ones are left out."""

    steps: int
    collections: int = 0
    """Times that Python's garbage collector ran."""
    collector_ms: float = 0.0
    longest_collection_ms: float = 0.0
    graphs: int = 0
    """That `torch.compile` made."""
    compile_ms: float = 0.0
    """That it took for them, 0 if unknown."""
    graph_breaks: int = 0
    """Of the whole run."""
    major_faults: int = 0
    """Pages that were read from a disk, 0 if unknown."""
    peak_bytes: int = 0
    """Most that the process ever held in memory."""
    swapped_bytes: int = 0
    """Of its memory, what was swapped out in the end."""
    device_peak_bytes: int = 0
    """Most that tensors ever held on the current GPU, 0 without one."""
    device_reserved_bytes: int = 0
    """Most that torch's allocator ever held there for them."""
    device_retries: int = 0
    """Times that it gave back what it kept, as a request did not fit."""


class ProcessCounter:
    """Counts from `begin` to `end`."""

    def __init__(self) -> None:
        self._steps: int | None = None
        self._collections, self._ns, self._longest_ns = 0, 0, 0
        self._since = 0
        self._compiled = (0, 0.0, 0)
        self._faults = self._retries = 0
        self._counts: ProcessCounts | None = None

    def begin(self, steps: int) -> None:
        """Count from here on, unless that was begun before.

        Args:
            steps: that were taken before.
        """
        if self._steps is not None or self._counts is not None:
            return
        self._steps, self._compiled, self._faults = steps, _compiled(), _major_faults()
        self._retries = _device_stats().get("num_alloc_retries", 0)
        gc.callbacks.append(self._note)

    def end(self, steps: int) -> None:
        """Count no further; where it was not begun, or has ended, nothing is done.

        Args:
            steps: that were taken.
        """
        if self._steps is None:
            return
        if self._note in gc.callbacks:
            gc.callbacks.remove(self._note)
        graphs, seconds, breaks = _compiled()
        device = _device_stats()
        self._counts = ProcessCounts(
            steps=steps - self._steps,
            collections=self._collections,
            collector_ms=self._ns / 1e6,
            longest_collection_ms=self._longest_ns / 1e6,
            # A script may set the counters back.
            graphs=max(0, graphs - self._compiled[0]),
            compile_ms=max(0.0, seconds - self._compiled[1]) * 1e3,
            graph_breaks=breaks,
            major_faults=_major_faults() - self._faults,
            peak_bytes=peak_bytes(),
            swapped_bytes=swapped_bytes(),
            device_peak_bytes=device.get("allocated_bytes.all.peak", 0),
            device_reserved_bytes=device.get("reserved_bytes.all.peak", 0),
            device_retries=max(0, device.get("num_alloc_retries", 0) - self._retries),
        )
        self._steps = None

    def counts(self) -> ProcessCounts | None:
        """Return what was counted, None if no step was."""
        return self._counts if self._counts is not None and self._counts.steps > 0 else None

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        del info
        now = time.perf_counter_ns()
        if phase == "start":
            self._since = now
        elif self._since:
            self._collections += 1
            self._ns += now - self._since
            self._longest_ns = max(self._longest_ns, now - self._since)


def _compiled() -> tuple[int, float, int]:
    """Return graphs, the seconds that they took, and graph breaks, of this process so far."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0, 0.0, 0
    spent = getattr(dynamo, "calculate_time_spent", dict)()
    graphs, breaks = dynamo.counters["stats"]["unique_graphs"], dynamo.counters["graph_break"]
    return int(graphs), float(spent.get("total_wall_time", 0.0)), sum(breaks.values())


def _device_stats() -> Mapping[str, int]:
    """Return torch's figures of the current GPU, none where no GPU is used."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    return torch.cuda.memory_stats()


def _major_faults() -> int:
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt
