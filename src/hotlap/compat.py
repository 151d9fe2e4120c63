"""Every private name of torch that hotlap touches, each with a probe.

An unknown torch, one that lacks a name, is observed as far as it can be and never changed. What
only hotlap's own engine needs is looked for when it is used.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from hotlap.errors import RunError


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
    PrivateName(
        "torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._shutdown_workers", "feed"
    ),
    PrivateName("torch.optim.optimizer", "Optimizer._patch_step_function", "observe"),
    PrivateName("torch.utils._python_dispatch", "TorchDispatchMode", "optimizer"),
    PrivateName("torch.nn", "Module.__call__", "model"),
    PrivateName("torch", "_fused_sdp_choice", "attention"),
    PrivateName("torch._C", "_current_graph_task_id", "model"),
    PrivateName("torch", "Tensor._make_wrapper_subclass", "model"),
    PrivateName("torch._subclasses.fake_tensor", "FakeTensorMode", "estimate"),
    PrivateName("torch.utils._python_dispatch", "_disable_current_modes", "estimate"),
    PrivateName("torch.amp.grad_scaler", "GradScaler._found_inf_per_device", "engine on a device"),
)


OPTIONAL = (
    PrivateName("torch._C", "_accelerator_getAllocatorSettings", "allocator"),
    PrivateName("torch._C", "_accelerator_setAllocatorSettings", "allocator"),
    PrivateName("torch.cuda.memory", "_set_allocator_settings", "allocator, on an older torch"),
    PrivateName("torch._C", "_cuda_endAllocateToPool", "cuda_graph, where a capture fails"),
)
"""Names without which one technique does less, or refuses, and nothing else changes."""


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


def hide_worker_info() -> None:
    """Let `torch.utils.data.get_worker_info()` say None in this worker process.

    Raises:
        RunError: this torch keeps it elsewhere.
    """
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import worker

    worker._worker_info = None
    if get_worker_info() is not None:
        raise RunError(
            "this torch does not let a worker process hide that it is one. Allowed: streams "
            "without the technique `workers`."
        )
