"""Batches to where the model is."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Step = list[tuple[int, Any]]
"""The (samples, micro-batch) of one step."""


def to_device(value: Any, device: str) -> Any:
    """Return a nested batch with its tensors on the device."""
    return mapped(value, lambda tensor: tensor.to(device, non_blocking=True))


def mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a nested batch with `change` of each of its tensors, in their order."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[mapped(item, change) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([mapped(item, change) for item in value])
    return value


class Moved:
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
