"""How many bytes of samples a plan will keep in memory, and in whose."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from torch.utils.data import default_collate

from hotlap.feed.memory.place import DevicePlace
from hotlap.host.memory import available_bytes
from hotlap.plan import Plan
from hotlap.sequences.padding import Pad
from hotlap.task import Task
from hotlap.techniques import Technique


@dataclass(frozen=True)
class KeptSamples:
    """Samples in memory."""

    bytes: int
    is_on_device: bool = False
    """True if that is the memory of a device that is not the host."""


def kept_samples(
    task: Task,
    plan: Plan,
    known: Mapping[str, Technique],
    of_one: int,
    *,
    device: str,
    memory_bytes: int,
) -> KeptSamples:
    """Return what a run will keep; nothing if it will find that there is no room for it.

    Args:
        task: what is learned.
        plan: how it is executed.
        known: all techniques.
        of_one: bytes of a sample.
        device: that the model trains on.
        memory_bytes: of that device.
    """
    keeping = [
        known[name].options(options)
        for name, options in plan.techniques.items()
        if known[name].memory.keeps_dataset
    ]
    if task.is_stream or not keeping or not _keeps_rows(task):
        return KeptSamples(0)
    options = keeping[0]
    size = (len(task.data) + _held_out_samples(task)) * of_one
    is_transformed = task.transform is not None or task.batch_transform is not None
    # A technique from outside has options of its own.
    where, most = getattr(options, "where", "auto"), getattr(options, "max_mib", sys.maxsize)
    may_be_there = device != "cpu" and where != "host" and not is_transformed
    if may_be_there and size <= DevicePlace.share_of(memory_bytes):
        return KeptSamples(size, is_on_device=True)
    # As `HostPlace` has it, before the run holds anything.
    free = memory_bytes if device == "cpu" else available_bytes()
    return KeptSamples(size if size <= min(most * 2**20, free // 2) else 0)


def _keeps_rows(task: Task) -> bool:
    """Return whether the batches of a task can be taken apart into their samples."""
    if task.lengths is not None and isinstance(task.collate, Pad):
        return True
    return task.collate is None or task.collate is default_collate


def _held_out_samples(task: Task) -> int:
    is_map = hasattr(task.held_out, "__len__") and hasattr(task.held_out, "__getitem__")
    return len(task.held_out) if is_map else 0
