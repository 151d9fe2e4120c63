"""Copies a batch to the device in the step that needs it."""

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotlap import nested

Step = list[tuple[int, Any]]
"""The (samples, micro-batch) of one step."""


def to_device(value: Any, device: str, *, waits: bool = True) -> Any:
    """Return a nested batch with its tensors on the device.

    Args:
        value: the batch.
        device: as torch names it.
        waits: for copies from memory that the task has pinned. It is still read after a copy was
            queued, and may be filled again meanwhile.
    """

    def move(tensor: torch.Tensor) -> torch.Tensor:
        # Those of other types are not looked at, see `Reuse`.
        is_waited_for = (waits or type(tensor) is not torch.Tensor) and _is_pinned(tensor)
        return tensor.to(device, non_blocking=not is_waited_for)

    return nested.map_tensors(value, move)


def _is_pinned(tensor: torch.Tensor) -> bool:
    """True of pinned memory, which the task has made.

    Of other memory a copy that is not waited for is made by way of memory of the driver's own.
    """
    return tensor.layout == torch.strided and tensor.is_pinned()


class Reuse:
    """Whether a task fills the same memory for each batch: then one must be copied before the next
    is read. That is seen in the first steps, in which every copy is waited for.

    Args:
        within: steps before one among which its memory is looked for.
        is_read_late: whether a tensor is copied from where it is, and may be read late.
    """

    LOOKED_AT = 8

    def __init__(self, within: int, is_read_late: Callable[[torch.Tensor], bool]) -> None:
        self._left, self._is_seen = self.LOOKED_AT, False
        self._is_read_late = is_read_late
        # Tensors are held, so that their memory is nobody else's meanwhile.
        self._recent: deque[tuple[list[torch.Tensor], dict[int, int]]] = deque(maxlen=within)

    @property
    def is_possible(self) -> bool:
        """True if the next step may be read into memory that is still being copied."""
        return self._is_seen or self._left > 0

    def look_at(self, step: Step) -> bool:
        """Look whether one of the first steps is in memory of one before it, with other content.

        What is the same in each batch, as the weights of classes are, is not filled again.

        Returns:
            Whether its copies have to be waited for.
        """
        if self._is_seen or not self._left:
            return self._is_seen
        given = (t for _, batch in step for t in nested.tensors(batch) if t.numel())
        late = [t for t in given if type(t) is torch.Tensor and self._is_read_late(t)]
        if not late:
            return False
        self._left -= 1
        now = {tensor.data_ptr(): _checksum(tensor) for tensor in late}
        self._is_seen = any(
            before.get(place, content) != content
            for _, before in self._recent
            for place, content in now.items()
        )
        self._recent.append((late, now))
        if self._is_seen or not self._left:
            self._recent.clear()
        return True


def _checksum(tensor: torch.Tensor) -> int:
    """Return a checksum of what a tensor of the host holds; of another size it is another one."""
    plain = tensor.int_repr() if tensor.is_quantized else tensor.detach()
    # What is conjugated or negated only when it is read cannot be seen as bytes.
    plain = plain.resolve_conj().resolve_neg().contiguous()
    return zlib.crc32(plain.view(-1).view(torch.uint8).numpy().data, plain.numel())


class DeviceTransfer:
    """Moves each batch when its step comes.

    Args:
        device: as torch names it.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._reuse = Reuse(Reuse.LOOKED_AT, _is_pinned)

    def __call__(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Give the same steps with their batches on the device."""
        for step in steps:
            waits = self._reuse.look_at(step)
            yield [
                (samples, to_device(batch, self._device, waits=waits)) for samples, batch in step
            ]
