"""`DeviceMemory`: what torch's allocator of CUDA memory says of a run: counters, peaks, history."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from hotlap import compat
from hotlap.errors import RunError
from hotlap.trace.memory_schema import AllocatorStep, DevicePeak

_MOST_EVENTS = 200_000
"""Allocations and frees that the history keeps, the newest; each takes a few KB in a snapshot."""


class DeviceMemory:
    """Reads the allocator of the device that the models are on; a CPU's has nothing to say.

    CUDA is asked only once a model's parameters are there, so that the script has begun to use it
    itself, and not while a graph is captured.

    Args:
        keeps_history: record each allocation with its stack, for `write_snapshot`.
    """

    def __init__(self, *, keeps_history: bool = False) -> None:
        self.steps: list[AllocatorStep] = []
        self.has_snapshot = False
        self._keeps_history = keeps_history
        self._device: torch.device | None = None
        self._records = False

    def begin(self, models: Iterable[Any]) -> None:
        """Begin to follow the device of the models, if it has such an allocator and is not yet."""
        if self._device is not None:
            return
        found = (tensor.device for model in models for tensor in model.parameters())
        device = next((each for each in found if each.type == "cuda"), None)
        if device is None or torch.cuda.is_current_stream_capturing():
            return
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)
        record = compat.find_optional("_record_memory_history")
        if self._keeps_history and record is not None:
            record("all", context="all", stacks="python", max_entries=_MOST_EVENTS)
            self._records = True

    def step_ends(self, step: int) -> None:
        """Note the counters.

        Args:
            step: the one that has ended, from 1.
        """
        if self._device is None or torch.cuda.is_current_stream_capturing():
            return
        stats = torch.cuda.memory_stats(self._device)
        self.steps.append(
            AllocatorStep(
                step,
                device_allocs=stats.get("num_device_alloc", 0),
                device_frees=stats.get("num_device_free", 0),
                retries=stats.get("num_alloc_retries", 0),
                allocated_bytes=stats.get("allocated_bytes.all.current", 0),
                reserved_bytes=stats.get("reserved_bytes.all.current", 0),
                inactive_split_bytes=stats.get("inactive_split_bytes.all.current", 0),
            )
        )

    def peak(self) -> DevicePeak | None:
        """Return the most that was allocated and reserved since `begin`, None without CUDA."""
        if self._device is None:
            return None
        return DevicePeak(
            torch.cuda.max_memory_allocated(self._device),
            torch.cuda.max_memory_reserved(self._device),
        )

    def write_snapshot(self, path: Path) -> None:
        """Write the history as a file for PyTorch's memory viewer, and record no more.

        Raises:
            RunError: there is no history; the message says why.
            OSError: the file cannot be written.
        """
        dump = compat.find_optional("_dump_snapshot")
        if self._device is None:
            raise RunError(
                "the model is not on a CUDA device, and only CUDA memory has a snapshot. Remove "
                "--snapshot, or train on a CUDA device"
            )
        if not self._records or dump is None:
            raise RunError(
                f"torch {torch.__version__} does not record the history of CUDA memory. Remove "
                "--snapshot, or use torch 2.13"
            )
        dump(str(path))
        compat.find_optional("_record_memory_history")(None)
        self._records = False
        self.has_snapshot = True
