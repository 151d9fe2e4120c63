"""`peak_bytes`: measures the peak of tensor memory while a function runs, on CUDA or a CPU."""

import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(work: Callable[[], Any], device: str = "cpu") -> int:
    """Run `work`; return the most bytes of tensors that were alive at once, above those before.

    On a CUDA device that is what `torch.cuda.max_memory_allocated` says; on a CPU the allocator's
    own events, as the profiler records them. Its cost in time is large on a CPU.
    """
    if device.startswith("cuda"):
        # What waits for Python's collector would be given back in the middle of it.
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before
    # torch 2.11 warns of more than one cycle of profiling unless it is told what becomes of events.
    cpu = [ProfilerActivity.CPU]
    with profile(activities=cpu, profile_memory=True, acc_events=True) as profiled:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    # Of blocks from before only the end is told, and the allocator leaves it out.
    memory = [event["args"] for event in events if event.get("name") == "[memory]"]
    return max((_bytes_of(args) for args in memory), default=0) - _bytes_before(memory)


def _bytes_of(args: dict[str, Any]) -> int:
    return int(args["Total Allocated"])


def _bytes_before(memory: list[dict[str, Any]]) -> int:
    """Return what an earlier profile had left in the allocator's count."""
    return _bytes_of(memory[0]) - int(memory[0]["Bytes"]) if memory else 0
