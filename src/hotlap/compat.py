"""Every private name of torch that hotlap touches, each with a probe.

An unknown torch, one that lacks a name, is observed as far as it can be and never changed.
"""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrivateName:
    """One name, where it lives, and what hotlap loses without it."""

    module: str
    path: str
    needed_for: str


NAMES = (
    PrivateName("torch.utils.data.dataloader", "DataLoader._get_iterator", "feed"),
    PrivateName("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", "observe"),
    PrivateName("torch.utils.data._utils.fetch", "_MapDatasetFetcher.fetch", "feed"),
    PrivateName("torch.optim.optimizer", "Optimizer._patch_step_function", "observe"),
    PrivateName("torch.utils._python_dispatch", "TorchDispatchMode", "optimizer"),
    PrivateName("torch.nn", "Module.__call__", "model"),
)


OPTIONAL = (
    PrivateName("torch._C", "_accelerator_getAllocatorSettings", "allocator"),
    PrivateName("torch._C", "_accelerator_setAllocatorSettings", "allocator"),
)
"""Names without which one technique refuses, and nothing else changes."""


def optional(path: str) -> Any:
    """Return what one of the `OPTIONAL` names stands for, None if this torch lacks it."""
    (name,) = [name for name in OPTIONAL if name.path == path]
    return getattr(importlib.import_module(name.module), path, None)


def missing() -> list[PrivateName]:
    """Return the names that this torch does not have. Imports torch."""
    absent = []
    for name in NAMES:
        try:
            value: object = importlib.import_module(name.module)
        except ImportError:
            absent.append(name)
            continue
        for part in name.path.split("."):
            value = getattr(value, part, None)
            if value is None:
                absent.append(name)
                break
    return absent
