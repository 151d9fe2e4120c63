"""`Limit`: makes allocations of a trial above so many bytes fail, and tells that memory ran out."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hotlap.device.accelerator import Cuda, Device
from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.host.memory import available_bytes, limited_memory, resident_bytes

_SHARE = 0.9
"""Of a host's available memory that a run may take: other processes need some, too."""
_WORDS = (
    "out of memory",
    "bad_alloc",
    "can't allocate memory",
    "Cannot allocate memory",
    "could not create a memory",
    "could not create a primitive",
    "could not allocate",
)
"""What libraries say when an allocation has failed. Of a primitive, oneDNN does not say why it
could not be created; under a limit, it is for want of memory."""


@dataclass(frozen=True)
class Limit:
    """How much memory there is for a run on a device."""

    hardware: Device
    bytes: int

    @property
    def peak_bytes(self) -> int:
        """The most bytes held at once: of this process on a CPU, else of torch's allocator."""
        if self.hardware.kind == "cuda":
            return int(torch.cuda.max_memory_reserved(self.hardware.name))
        return resident_bytes()[1]

    @property
    def held_bytes(self) -> int:
        """The bytes held now."""
        if self.hardware.kind == "cuda":
            return int(torch.cuda.memory_reserved(self.hardware.name))
        return resident_bytes()[0]


def limit_of(hardware: Device, asked: int | None) -> Limit:
    """Return the limit that was asked for, or what there is to take on the device."""
    if asked is not None:
        return Limit(hardware, asked)
    if hardware.kind == "cuda":
        return Limit(hardware, hardware.free_bytes())
    return Limit(hardware, resident_bytes()[0] + int(_SHARE * available_bytes()))


def limit_of_turns(hardware: Device, asked: int) -> Limit:
    """Return the limit of a process in which sizes take turns that fit into `asked` bytes each.

    On a CPU such a process holds more than a run with one of them: what is freed lies in pieces. To
    fail for that would say nothing of a run, so only the host's memory limits it.
    """
    limit = limit_of(hardware, asked)
    if hardware.kind == "cuda":
        return limit
    return max(limit, limit_of(hardware, None), key=lambda each: each.bytes)


@contextlib.contextmanager
def enforce(limit: Limit) -> Iterator[None]:
    """Let allocations above a limit fail, while entered. Libraries should be loaded before."""
    hardware = limit.hardware
    if isinstance(hardware, Cuda):
        total = torch.cuda.get_device_properties(hardware.number).total_memory
        before = _share_of(hardware.number)
        share = min(before, limit.bytes / total)
        torch.cuda.set_per_process_memory_fraction(share, hardware.number)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, hardware.number)
        return
    _take_a_step()
    with limited_memory(limit.bytes):
        yield


def _share_of(number: int) -> float:
    """Return which share of a CUDA device's memory torch may take by now."""
    try:
        return torch.cuda.get_per_process_memory_fraction(number)
    except RuntimeError:
        # An allocator that is limited, but does not tell; nobody else limits it here.
        return 1.0


def ran_out(error: BaseException) -> bool:
    """Return whether an error, or what it was raised from, says that memory ran out."""
    cause: BaseException | None = error
    while cause is not None:
        said = str(cause)
        if isinstance(cause, MemoryError) or is_out_of_memory(cause):
            return True
        if isinstance(cause, RuntimeError | OSError) and any(words in said for words in _WORDS):
            return True
        cause = cause.__cause__
    return False


def asked_for(error: BaseException) -> str:
    """Return what an allocator was asked for, in words that follow others; nothing if unknown."""
    if "could not create a primitive" in str(error):
        return ": oneDNN could not create a primitive"
    found = re.search(r"tried to allocate ([\d.]+) (bytes|[KMG]iB)", str(error), re.IGNORECASE)
    if found is None:
        return ""
    if found[2] == "bytes":
        return f" when it asked for {int(found[1]) / 2**20:.1f} MiB more"
    return f" when it asked for {found[1]} {found[2]} more"


def _take_a_step() -> None:
    """Load what a step loads first, and start threads, whose stacks are reserved as a whole."""
    weight = torch.ones(512, 512, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    (weight @ weight).sum().backward()
    optimizer.step()
