"""A device on the host that is as late as a real one: what is not waited for is not there yet."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotlap.device import Cuda

GARBAGE = 0xA5
"""What memory holds before it is written."""


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


class FakeCuda(Cuda):
    """Copies on a side stream wait for their event; a graph runs only when it is replayed.

    Attributes:
        calls: names of what was asked of the device, in order.
    """

    def __init__(self, *, reads: tuple[str, ...] = (), broken: str | None = None) -> None:
        super().__init__("cpu")
        self.kind = "cuda"
        self.calls: list[str] = []
        self.handed_over = 0
        self.pinned_bytes = 0
        self.free = 2**30
        self._reads, self._broken = reads, broken
        self._here = threading.local()

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def peak_bytes(self) -> int:
        return 0

    def free_bytes(self) -> int:
        return self.free

    def new_stream(self) -> Any:
        return Stream()

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
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

    def hand_over(self, tensor: Any) -> None:
        self.handed_over += 1

    def pinned(self, size: int) -> Any:
        self.pinned_bytes += size
        return torch.full((size,), GARBAGE, dtype=torch.uint8)

    def like(self, tensor: Any) -> Any:
        made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        return made.fill_(GARBAGE)

    def copy(self, target: Any, source: Any) -> None:
        stream = getattr(self._here, "stream", None)
        if stream is None:
            target.copy_(source)
        else:
            stream.queue.append(lambda: target.copy_(source))

    def capture(self, work: Callable[[], Any], stream: Any) -> Any:
        self.calls.append("capture")
        if self._broken is not None:
            raise RuntimeError(self._broken)
        return _Graph(work, self.calls)

    @contextlib.contextmanager
    def host_reads(self) -> Iterator[list[str]]:
        found: list[str] = []
        yield found
        found.extend(self._reads)


class _Graph:
    def __init__(self, work: Callable[[], Any], calls: list[str]) -> None:
        self._work, self._calls = work, calls

    def replay(self) -> Any:
        self._calls.append("replay")
        return self._work().clone()
