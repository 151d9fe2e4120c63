"""Copies batches to the device ahead of their step, from pinned memory, on a stream of their own.

Samples are read by the thread that trains, in their order, so that whatever they draw is drawn as
it would be without this. A thread beside it only copies: into a pinned buffer, and on to the
device. It draws nothing, and nothing that it does is seen before its event has been waited for.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.feed.transfer.plain import Reuse, Step
from hotlap.nested import map_tensors, tensors

_ALIGNED = 64
"""Bytes: the beginning of each tensor in a buffer."""


@dataclass
class _Buffer:
    """Pinned memory of one step that is on its way."""

    memory: torch.Tensor | None = None
    copied: Any = None
    """Event behind the last copy out of the buffer."""
    instead: Step | None = None
    """The step that was copied from where it is, which must be there until then."""

    @property
    def size(self) -> int:
        return 0 if self.memory is None else self.memory.numel()


@dataclass
class _Sent:
    step: Step
    tensors: list[torch.Tensor] = field(default_factory=list)
    """Those that were made on the stream of the copies."""
    copied: Any = None


class PinnedFeed:
    """Gives steps with their batches on the device, `ahead` of them under way.

    Args:
        device: a CUDA device.
        ahead: steps that are under way at once.
        max_bytes: of pinned memory. A step that would need more is copied as it is.
    """

    def __init__(self, device: Cuda, *, ahead: int, max_bytes: int) -> None:
        self.device, self.ahead, self.max_bytes = device, ahead, max_bytes
        self.pinned_steps = self.other_steps = 0
        """Steps that went through pinned memory, and those that did not."""
        self.most_bytes = 0
        """Of pinned memory, held at once."""
        self._stream: Any = None
        self._number = 0
        self._buffers = [_Buffer() for _ in range(ahead)]
        self._reuse = Reuse(ahead - 1, _can_be_sent)

    def __call__(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Give the same steps; what reading one ahead of its time raises is raised in its turn."""
        if self._stream is None:
            self._stream = self.device.new_stream()
        under_way: deque[Future[_Sent] | _Sent | Exception] = deque()
        is_open = True
        with ThreadPoolExecutor(1, "hotlap-pinned") as thread:
            while True:
                while is_open and len(under_way) < self.ahead:
                    if self._reuse.is_possible:
                        _wait_for_copies(under_way)
                    try:
                        step = next(steps, None)
                    except Exception as error:
                        # A run that ends before this step would never have met it.
                        under_way.append(error)
                        step = None
                    is_open = step is not None
                    if step is not None:
                        under_way.append(self._start_copy(step, thread))
                        self._reuse.look_at(step)
                if not under_way:
                    return
                yield self._receive(under_way.popleft())

    def _start_copy(self, step: Step, thread: ThreadPoolExecutor) -> Future[_Sent] | _Sent:
        if not _is_on_host(step):
            return _Sent(step)
        self._number += 1
        return thread.submit(self._send, step, self._buffers[self._number % self.ahead])

    def _receive(self, sent: Future[_Sent] | _Sent | Exception) -> Step:
        if isinstance(sent, Exception):
            raise sent
        done = sent.result() if isinstance(sent, Future) else sent
        if done.copied is not None:
            self.device.wait(done.copied)
        for tensor in done.tensors:
            self.device.hand_over(tensor)
        return done.step

    def _send(self, step: Step, buffer: _Buffer) -> _Sent:
        """Copy a step into the buffer and on to the device. Runs in the thread."""
        with self.device.current():
            return self._send_from(step, buffer)

    def _send_from(self, step: Step, buffer: _Buffer) -> _Sent:
        device = self.device
        fits = self._make_room(buffer, _needed_bytes(step))
        if fits:
            self.pinned_steps += 1
        else:
            self.other_steps += 1
        made: list[torch.Tensor] = []
        offset = 0

        def send(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal offset
            if not _can_be_sent(tensor):
                there = device.to_device(tensor)
                if there is not tensor and there.layout == torch.strided:
                    made.append(there)
                return there
            there, here = device.empty_like(tensor), tensor
            if fits:
                assert buffer.memory is not None
                size = _bytes(tensor)
                here = buffer.memory[offset : offset + size].view(tensor.dtype)
                here = here.as_strided(tensor.size(), tensor.stride())
                here.copy_(tensor)
                offset += _round_up(size)
            # Memory that the task has pinned may be filled again, as soon as this has returned.
            device.copy(there, here, waits=not fits and device.is_pinned(tensor))
            made.append(there)
            return there

        with device.use_stream(self._stream):
            moved = [(samples, map_tensors(batch, send)) for samples, batch in step]
            buffer.copied = device.mark()
        buffer.instead = None if fits else step
        return _Sent(moved, made, buffer.copied)

    def _make_room(self, buffer: _Buffer, needed: int) -> bool:
        if buffer.copied is not None:
            # What was in it may still be on its way.
            self.device.wait_on_host(buffer.copied)
        if buffer.size >= needed:
            return True
        others = sum(other.size for other in self._buffers if other is not buffer)
        if others + needed > self.max_bytes:
            return False
        buffer.memory = None
        buffer.memory = self.device.allocate_pinned(needed)
        self.most_bytes = max(self.most_bytes, others + needed)
        return True


def _wait_for_copies(under_way: Iterable[Any]) -> None:
    """Wait until what was read is in memory of ours, or on the device."""
    for sent in under_way:
        if isinstance(sent, Future):
            # What it has raised is raised in its turn.
            sent.exception()


def _can_be_sent(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is plain memory on the host, without holes."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and _is_dense(tensor)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (
        tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _is_on_host(step: Step) -> bool:
    return any(tensor.device.type == "cpu" for _, batch in step for tensor in tensors(batch))


def _needed_bytes(step: Step) -> int:
    sent = (t for _, batch in step for t in tensors(batch) if _can_be_sent(t))
    return sum(_round_up(_bytes(tensor)) for tensor in sent)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
