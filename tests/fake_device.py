"""A device on the host that is as late as a real one: what is not waited for is not there yet."""

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotlap.device.accelerator import Cuda
from hotlap.device.capture import noted_host_draws, noted_host_reads

GARBAGE = 0xA5
"""What memory holds before it is written."""
POOL = 2**20
"""Bytes that a graph holds."""


_capturing = threading.local()
_CHECK = next(
    name
    for name in ("_accelerator_graph_capture_health_check", "_cuda_graph_capture_health_check")
    if hasattr(torch.optim.Optimizer, name)
)
_torchs_check = getattr(torch.optim.Optimizer, _CHECK)


def _checked(optimizer: torch.optim.Optimizer) -> None:
    """Let torch's own check of an optimizer's step, which is idle without an accelerator, see one.

    It raises where what is not `capturable` is captured, and warns where what is, is not.
    """
    if torch.cuda.is_available():
        return _torchs_check(optimizer)
    is_capturing = getattr(_capturing, "now", False)
    stands_in = SimpleNamespace(type="cuda", is_capturing=lambda: is_capturing)
    with (
        patch("torch.accelerator.current_accelerator", lambda **_: stands_in),
        patch("torch.accelerator.current_stream", lambda: stands_in),
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.is_current_stream_capturing", lambda: is_capturing),
    ):
        _torchs_check(optimizer)


setattr(torch.optim.Optimizer, _CHECK, _checked)


class Stream:
    """Work that is done when somebody waits for it."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], None]] = []
        self.done = 0
        self.lock = threading.Lock()

    def run_to(self, place: int) -> None:
        with self.lock:
            while self.done < place:
                self.queue[self.done]()
                self.done += 1


class TimedMark:
    """An event that knows when it was passed, if it is not one of a graph."""

    def __init__(self, is_captured: bool) -> None:
        self.at, self._is_captured = time.perf_counter(), is_captured

    def synchronize(self) -> None:
        self._check()

    def elapsed_time(self, end: "TimedMark") -> float:
        self._check()
        end._check()
        return (end.at - self.at) * 1e3

    def _check(self) -> None:
        if self._is_captured:
            raise RuntimeError("operation not permitted on an event last recorded in a capture")


class FakeCuda(Cuda):
    """Copies on a side stream wait for their event; a replayed graph runs no Python.

    Args:
        reads: places at which the host reads in every step.
        broken: what a capture fails with.
        number: of the device. Every thread begins on device 0, as with a real one.

    Attributes:
        calls: names of what was asked of the device, in order.
        needed: bytes that any work needs.
        opened: numbers of the devices that memory was asked of.
        slow_copies: copies that the host waits for: neither side is pinned.
        pool_bytes: held by graphs, and by captures that failed, until they are released.
    """

    def __init__(
        self, *, reads: tuple[str, ...] = (), broken: str | None = None, number: int = 0
    ) -> None:
        super().__init__("cpu")
        self.kind = "cuda"
        self.calls: list[str] = []
        self.opened: set[int] = set()
        self.handed_over = self.slow_copies = 0
        self.pinned_bytes = self.pool_bytes = 0
        self.free = self.total = self.needed = 2**30
        self._reads, self._broken, self._number = reads, broken, number
        self._here = threading.local()
        self._pinned: list[torch.Tensor] = []

    @property
    def number(self) -> int:
        return self._number

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        before, self._here.number = getattr(self._here, "number", 0), self._number
        try:
            yield
        finally:
            self._here.number = before

    def timed_mark(self) -> Any:
        return TimedMark(self.is_capturing())

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def peak_bytes(self) -> int:
        return 0

    def memory_report(self) -> dict[str, int]:
        return {"allocated": 0, "reserved": self.pool_bytes, "used": self.total - self.free}

    def free_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return self.total

    def release_memory(self) -> None:
        # Those of graphs stay, and of this one there is none.
        if self._broken is not None:
            self.pool_bytes = 0

    def needed_bytes(self, work: Callable[[], Any]) -> int:
        work()
        return self.needed

    def new_stream(self) -> Any:
        return Stream()

    @property
    def stream(self) -> Any:
        """The calling thread's current stream, None if that is the default one."""
        return getattr(self._here, "stream", None)

    @contextlib.contextmanager
    def use_stream(self, stream: Any) -> Iterator[None]:
        before, self._here.stream = getattr(self._here, "stream", None), stream
        try:
            yield
        finally:
            self._here.stream = before

    def mark(self) -> Any:
        stream = getattr(self._here, "stream", None)
        return (stream, len(stream.queue)) if stream is not None else (None, 0)

    def wait(self, event: Any) -> None:
        self.wait_on_host(event)

    def wait_on_host(self, event: Any) -> None:
        stream, place = event
        if stream is not None:
            stream.run_to(place)

    def has_passed(self, event: Any) -> bool:
        stream, place = event
        return stream is None or stream.done >= place

    def hand_over(self, tensor: Any) -> None:
        self.handed_over += 1

    def send(self, tensor: Any) -> Any:
        return tensor.clone()

    def allocate_pinned(self, size: int) -> Any:
        self.pinned_bytes += size
        self.opened.add(getattr(self._here, "number", 0))
        self._pinned.append(torch.full((size,), GARBAGE, dtype=torch.uint8))
        return self._pinned[-1]

    def empty_like(self, tensor: Any) -> Any:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        return made.fill_(GARBAGE)

    def to_device(self, tensor: Any) -> Any:
        self.slow_copies += 1
        return tensor.clone()

    def copy(self, target: Any, source: Any, *, waits: bool = False) -> None:
        is_fast = self.is_pinned(target) or self.is_pinned(source)
        self.slow_copies += not is_fast or waits
        stream = getattr(self._here, "stream", None)
        if stream is None or waits:
            target.copy_(source)
            return
        # The device keeps nothing alive; pinned memory is that of a buffer which is.
        kept = (lambda: source) if is_fast else weakref.ref(source)

        def copy_late() -> None:
            there = kept()
            assert there is not None, "what is copied was freed before it was"
            target.copy_(there)

        stream.queue.append(copy_late)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() == 0 or any(
            0 <= tensor.data_ptr() - held.data_ptr() < held.numel() for held in self._pinned
        )

    def is_capturing(self) -> bool:
        return getattr(_capturing, "now", False)

    def capture(self, work: Callable[[], Any], stream: Any) -> Any:
        self.calls.append("capture")
        self.pool_bytes += POOL
        if self._broken is not None:
            raise RuntimeError(self._broken)
        _capturing.now = True
        try:
            with self.use_stream(stream):
                return _Graph(work, self.calls)
        finally:
            _capturing.now = False

    @contextlib.contextmanager
    def host_reads(self) -> Iterator[list[str]]:
        with (
            patch("torch.cuda.get_sync_debug_mode", lambda: 0),
            patch("torch.cuda.set_sync_debug_mode", lambda mode: None),
            noted_host_reads() as found,
            _Reads(),
        ):
            yield found
        found.extend(self._reads)

    @contextlib.contextmanager
    def host_draws(self) -> Iterator[list[str]]:
        # Here torch's generator of the CPU is the device's, too.
        with noted_host_draws() as drawn:
            yield (found := list[str]())
        found.extend(name for name in drawn if not name.startswith("torch"))


class _Reads(TorchFunctionMode):
    """Says where the host reads a tensor, all of which are on the device, as torch's mode does."""

    _READING = (
        *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu, torch.equal),
        *(torch.Tensor.__bool__, torch.Tensor.__float__, torch.Tensor.__int__),
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in self._READING:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)
        return func(*args, **(kwargs or {}))


class _Capture(TorchDispatchMode):
    """Notes every operator with what it read and gave."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[Any, Any, Any, Any]] = []
        self.seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Tensors that were given to an operator, with what they held before. Not only those that
        its schema says it writes to: batch norm says nothing of its statistics."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self.seen:
                self.seen[id(tensor)] = tensor, tensor.clone()
        result = func(*args, **(kwargs or {}))
        self.operators.append((func, args, kwargs or {}, result))
        return result


class _Graph:
    """Operators that run again on the same tensors, and nothing of Python's between them."""

    def __init__(self, work: Callable[[], Any], calls: list[str]) -> None:
        self._calls = calls
        random = torch.get_rng_state()
        capture = _Capture()
        try:
            with capture:
                self._result = work()
        finally:
            # Captured is not run.
            torch.set_rng_state(random)
            # A view may be seen after what it is of was written to.
            for tensor, before in reversed(capture.seen.values()):
                # What is expanded is a view of what is not.
                if 0 not in tensor.stride():
                    tensor.data.copy_(before)
        self._operators = capture.operators

    def replay(self) -> Any:
        self._calls.append("replay")
        with torch.no_grad():
            for func, args, kwargs, result in self._operators:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    is_tensor = isinstance(old, torch.Tensor)
                    if is_tensor and old.data_ptr() != new.data_ptr():
                        old.data.copy_(new)
        return self._result.clone()
