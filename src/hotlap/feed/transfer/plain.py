"""Copies a batch to the device in the step that needs it."""

from collections.abc import Iterator
from typing import Any

import torch

from hotlap import nested

Step = list[tuple[int, Any]]
"""The (samples, micro-batch) of one step."""


def to_device(value: Any, device: str) -> Any:
    """Return a nested batch with its tensors on the device."""
    return nested.map_tensors(
        value, lambda tensor: tensor.to(device, non_blocking=not _may_be_filled_again(tensor))
    )


def _may_be_filled_again(tensor: torch.Tensor) -> bool:
    """True of pinned memory, which the task has made: it is still read after a copy was queued.

    Of other memory a copy that is not waited for is made by way of memory of the driver's own.
    """
    return tensor.layout == torch.strided and tensor.is_pinned()


class DeviceTransfer:
    """Moves each batch when its step comes.

    Args:
        device: as torch names it.
    """

    def __init__(self, device: str) -> None:
        self._device = device

    def __call__(self, steps: Iterator[Step]) -> Iterator[Step]:
        """Give the same steps with their batches on the device."""
        for step in steps:
            yield [(samples, to_device(batch, self._device)) for samples, batch in step]
