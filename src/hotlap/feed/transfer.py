"""Batches to where the model is."""

from collections.abc import Mapping
from typing import Any

import torch


def to_device(value: Any, device: str) -> Any:
    """Return a nested batch with its tensors on the device."""
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[to_device(item, device) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([to_device(item, device) for item in value])
    return value
