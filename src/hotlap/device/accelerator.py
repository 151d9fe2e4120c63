"""`Cuda` and `Device`: everything that hotlap asks of a device: streams, events, copies, memory.

`device_of(name)` gives a `Device`. What is written against it runs on a CPU too, under a fake of
the tests that records and delays as a device does; only `Cuda` itself needs one.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from hotlap.device.capture import Graph, capture_graph, noted_host_draws, noted_host_reads
from hotlap.errors import UsageError
from hotlap.host.memory import peak_bytes

_TAKE_FOUND_INF = ("Adam", "AdamW", "SGD")
"""Optimizers whose fused CUDA kernels look at `found_inf`."""


class Device:
    """The CPU: nothing is apart from the host, and nothing runs later than it is asked for.

    Args:
        name: as torch names it.
    """

    has_own_memory = False
    """True if its memory is not the host's: batches have to be moved there."""
    can_pin = False
    """True if host memory can be pinned for copies that the host does not wait for."""
    tells_needed_bytes = False
    """True if it can say what memory a call needed. On a host larger batches are of no use:
    activations of more than some megabytes are new pages for every call, which takes longer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = name.partition(":")[0]

    def synchronize(self) -> None:
        """Wait until everything that was asked for is done."""

    def is_capturing(self) -> bool:
        """True while what is queued goes into a graph: nothing may be read back."""
        return False

    def peak_bytes(self) -> int:
        """Return the most bytes held at once since the process began."""
        return self.host_peak_bytes()

    @staticmethod
    def host_peak_bytes() -> int:
        """Return the most bytes that this process held at once on the host."""
        return peak_bytes()

    def needed_bytes(self, work: Callable[[], Any]) -> int:
        """Run `work`; return the most bytes that it held at once, beside what was held before."""
        raise NotImplementedError(f"{self.name} does not say what memory a call needed")

    def memory_report(self) -> dict[str, int]:
        """Return bytes on the device, as three count them; empty where there is no such memory.

        `allocated`: the most that tensors held at once; `reserved`: the most that torch's
        allocator held; `used`: what is taken now, by other processes as well.
        """
        return {}

    def release_memory(self) -> None:
        """Give back what torch has reserved and does not use."""

    def send(self, tensor: Any) -> Any:
        """Return a tensor of the host on the device. From memory that is not pinned the host would
        wait for all that is queued: it is pinned where it can be."""
        return tensor.to(self.name)

    def free_bytes(self) -> int:
        """Return the bytes that can still be taken on the device."""
        import psutil

        return int(psutil.virtual_memory().available)

    def total_bytes(self) -> int:
        """Return the bytes of memory that the device has."""
        import psutil

        return int(psutil.virtual_memory().total)


class Accelerator(Device):
    """A device with memory of its own of which hotlap knows no more than torch says of all."""

    has_own_memory = True

    def synchronize(self) -> None:
        self._module.synchronize()

    @property
    def _module(self) -> Any:
        """What torch has of such devices. That of MPS, whose memory is the host's, has no sizes."""
        import torch

        return getattr(torch, self.kind)

    def peak_bytes(self) -> int:
        if not hasattr(self._module, "max_memory_allocated"):
            return super().peak_bytes()
        return int(self._module.max_memory_allocated(self.name))

    def free_bytes(self) -> int:
        if not hasattr(self._module, "mem_get_info"):
            return super().free_bytes()
        return int(self._module.mem_get_info(self.name)[0])

    def total_bytes(self) -> int:
        if not hasattr(self._module, "mem_get_info"):
            return super().total_bytes()
        return int(self._module.mem_get_info(self.name)[1])


class Cuda(Accelerator):
    """A CUDA device: streams, events, pinned memory, graphs."""

    can_pin = True
    tells_needed_bytes = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._earlier_peak = 0
        """Of the time before the allocator was told to forget it."""

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.name)

    def peak_bytes(self) -> int:
        import torch

        return max(self._earlier_peak, int(torch.cuda.max_memory_allocated(self.name)))

    def needed_bytes(self, work: Callable[[], Any]) -> int:
        import torch

        self._earlier_peak = self.peak_bytes()
        torch.cuda.reset_peak_memory_stats(self.name)
        before = torch.cuda.memory_allocated(self.name)
        work()
        return int(torch.cuda.max_memory_allocated(self.name)) - before

    def memory_report(self) -> dict[str, int]:
        import torch

        free, total = torch.cuda.mem_get_info(self.name)
        return {
            "allocated": self.peak_bytes(),
            "reserved": int(torch.cuda.max_memory_reserved(self.name)),
            "used": int(total - free),
        }

    def release_memory(self) -> None:
        import torch

        torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        import torch

        free, _ = torch.cuda.mem_get_info(self.name)
        # What torch has reserved and does not use is free to it as well, but not that of a graph.
        held = torch.cuda.memory_reserved(self.name) - torch.cuda.memory_allocated(self.name)
        return int(free + held - self._idle_bytes_of_graphs())

    @property
    def number(self) -> int:
        """Which CUDA device it is: not all of torch's calls take `cuda` for the current one."""
        import torch

        number = torch.device(self.name).index
        return torch.cuda.current_device() if number is None else number

    def _idle_bytes_of_graphs(self) -> int:
        import torch

        if torch.cuda.get_allocator_backend() != "native":
            # The driver's own allocator tells of no segments: torch raises when it is asked.
            return 0
        number = self.number
        return sum(
            segment["total_size"] - segment["allocated_size"]
            for segment in torch.cuda.memory_snapshot()
            if segment["device"] == number and any(segment.get("segment_pool_id", ()))
        )

    def total_bytes(self) -> int:
        import torch

        return int(torch.cuda.mem_get_info(self.name)[1])

    def is_capturing(self) -> bool:
        import torch

        return torch.cuda.is_current_stream_capturing()

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager in which this is the calling thread's device.

        A new thread begins on device 0, and opens it by what it asks of no device in particular.
        """
        import torch

        return torch.cuda.device(self.name)

    def new_stream(self) -> Any:
        """Return a stream beside the one that computes."""
        import torch

        return torch.cuda.Stream(self.name)

    def use_stream(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context manager in which work is queued on that stream."""
        import torch

        return torch.cuda.stream(stream)

    def mark(self) -> Any:
        """Return an event that stands behind everything queued on the current stream."""
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.name))
        return event

    def timed_mark(self) -> Any:
        """Return an event as `mark` does, which knows when the device has passed it.

        What was marked while a graph was captured never knows: `elapsed_time` raises.
        """
        import torch

        event = torch.cuda.Event(enable_timing=True)
        # Not that of the process's current device, which may be another one.
        event.record(torch.cuda.current_stream(self.name))
        return event

    def wait(self, event: Any) -> None:
        """Let the current stream wait for an event; the host does not."""
        import torch

        torch.cuda.current_stream(self.name).wait_event(event)

    def wait_on_host(self, event: Any) -> None:
        """Wait for an event."""
        event.synchronize()

    def has_passed(self, event: Any) -> bool:
        """True if the device has passed an event; nothing is waited for."""
        return bool(event.query())

    def hand_over(self, tensor: Any) -> None:
        """Say that the current stream uses a tensor that was made on another one.

        Without it the memory of a tensor that is dropped early is given to the next copy.
        """
        import torch

        tensor.record_stream(torch.cuda.current_stream(self.name))

    def allocate_pinned(self, size: int) -> Any:
        """Return a pinned buffer on the host, uint8, shape (size,)."""
        import torch

        # Named, as a script may have set another default: only memory of the host can be pinned.
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)

    def empty_like(self, tensor: Any) -> Any:
        """Return an uninitialised tensor on the device, of the same shape, strides and dtype."""
        import torch

        return torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device=self.name
        )

    def to_device(self, tensor: Any) -> Any:
        """Return a tensor on the device, itself if it is there; the host waits for it."""
        return tensor.to(self.name)

    def send(self, tensor: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            tensor = tensor.pin_memory() if tensor.device.type == "cpu" else tensor
        return tensor.to(self.name, non_blocking=True)

    def is_pinned(self, tensor: Any) -> bool:
        """True if it is on the host in pinned memory."""
        return tensor.is_pinned()

    def copy(self, target: Any, source: Any, *, waits: bool = False) -> None:
        """Queue a copy on the current stream; the host does not wait if host memory is pinned,
        unless it is told to."""
        target.copy_(source, non_blocking=not waits)

    def scalar(self, value: float) -> Any:
        """Return a float32 scalar on the device."""
        import torch

        return torch.full((), value, dtype=torch.float32, device=self.name)

    def capture(self, work: Callable[[], Any], stream: Any) -> Graph:
        """Capture what `work` queues, without running it, on a stream that has run it before.

        Raises:
            RuntimeError: the work did something that a graph cannot hold.
        """
        return capture_graph(work, self.name, stream)

    def host_reads(self) -> contextlib.AbstractContextManager[list[str]]:
        """Return a context manager that gives `file:line` of every place in it where the host
        waited for the device."""
        return noted_host_reads()

    def host_draws(self) -> contextlib.AbstractContextManager[list[str]]:
        """Return a context manager that gives the generator of the host that was drawn from in it,
        if one was: a graph draws from those of the device only."""
        return noted_host_draws()


def device_of(name: str | None) -> Device:
    """Return the device of that name, or the one to use where nobody said: CUDA, else the CPU.

    Raises:
        UsageError: torch knows no such device, or it is not there.
    """
    import torch

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = kind_of(name)
    if kind == "cpu":
        return Device(name)
    if kind == "cuda":
        _check_cuda(name)
        return Cuda(name)
    module = getattr(torch, kind, None)
    if module is None or not hasattr(module, "synchronize"):
        raise UsageError(f"device='{name}' cannot run a model. Expected: cpu, cuda, cuda:N or mps.")
    if not module.is_available():
        raise UsageError(
            f"device='{name}' is not available on this machine. Use device='cpu', or run `hotlap "
            "env` to see what was found."
        )
    return Accelerator(name)


def kind_of(name: str) -> str:
    """Return what torch calls a kind of devices, whether one is there or not: `cuda` of `cuda:1`.

    Raises:
        UsageError: torch knows no such device.
    """
    import torch

    try:
        return torch.device(name).type
    except RuntimeError:
        raise UsageError(
            f"device='{name}' is not known. Expected: cpu, cuda, cuda:N, or another torch device."
        ) from None


def _check_cuda(name: str) -> None:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = torch.device(name).index or 0
    if number >= count:
        there = f"only {count} CUDA device{'s' * (count > 1)}" if count else "no CUDA device"
        several = f", cuda:0 to cuda:{count - 1}." if count > 1 else " or cuda:0."
        raise UsageError(
            f"device='{name}': torch {torch.__version__} sees {there}. Expected: cpu"
            + (several if count else "; run `hotlap env` for details.")
        )


def cannot_leave_out(optimizer: Any) -> str | None:
    """Return why an optimizer's own kernels cannot leave an update out, None if they can."""
    import torch

    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or kind.__name__ not in _TAKE_FOUND_INF:
        return (
            f"the optimizer is {kind.__module__}.{kind.__qualname__}; updates can be skipped "
            f"on the device only with torch's {', '.join(_TAKE_FOUND_INF)}"
        )
    for group in optimizer.param_groups:
        if group.get("dampening"):
            return f"fused SGD with dampening={group['dampening']} cannot skip its first update"
        if group.get("differentiable"):
            return "the optimizer has differentiable=True"
        if group.get("foreach"):
            return "the optimizer has foreach=True"
        if not all(p.is_floating_point() and p.layout == torch.strided for p in group["params"]):
            return "a parameter is not a dense floating-point tensor"
    return None
