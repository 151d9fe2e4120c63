"""Lists every private name of torch that hotlap uses, and checks whether this torch has it.

An unknown torch, one that lacks a name, is observed as far as it can be and never changed. What
only hotlap's own engine needs is looked for when it is used.
"""

import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.errors import RunError

_PATIENCE_S = 0.5
"""What an idle worker needs to end is a few milliseconds."""


@dataclass(frozen=True)
class PrivateName:
    """One name, and where it lives."""

    module: str
    path: str


NAMES = (
    # A script's loaders: what they give, and how it is read.
    PrivateName("torch.utils.data.dataloader", "DataLoader._get_iterator"),
    PrivateName("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__"),
    PrivateName("torch.utils.data._utils.fetch", "_MapDatasetFetcher.fetch"),
    PrivateName("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter._shutdown_workers"),
    # Its optimizers, and the operators of their steps.
    PrivateName("torch.optim.optimizer", "Optimizer._patch_step_function"),
    PrivateName("torch.utils._python_dispatch", "TorchDispatchMode"),
    # Its modules; attention, recomputed blocks, and a last layer that is put off.
    PrivateName("torch.nn", "Module.__call__"),
    PrivateName("torch", "_fused_sdp_choice"),
    PrivateName("torch", "ops.aten.scaled_dot_product_attention.default._dispatch_cache"),
    PrivateName("torch._C", "_current_graph_task_id"),
    PrivateName("torch", "Tensor._make_wrapper_subclass"),
    # Steps without numbers, for estimates.
    PrivateName("torch._subclasses.fake_tensor", "FakeTensorMode"),
    PrivateName("torch.utils._python_dispatch", "_disable_current_modes"),
    # Updates that a device leaves out, under a scaler.
    PrivateName("torch.amp.grad_scaler", "GradScaler._found_inf_per_device"),
    # Compiled regions, which wait until nobody records operators.
    PrivateName("torch._C", "_len_torch_dispatch_stack"),
    # Whether a call of a patched method is compiled.
    PrivateName("torch.compiler", "_is_compiling_flag"),
    # Formats that a gradient leads through.
    PrivateName("torch.autograd.graph", "Node._input_metadata"),
)


OPTIONAL = (
    # The technique `allocator`; the last of the three on an older torch.
    PrivateName("torch._C", "_accelerator_getAllocatorSettings"),
    PrivateName("torch._C", "_accelerator_setAllocatorSettings"),
    PrivateName("torch.cuda.memory", "_set_allocator_settings"),
    # Which devices a turn of a race waits for.
    PrivateName("torch._C", "_cuda_hasPrimaryContext"),
    # `cuda_graph`, where a capture fails.
    PrivateName("torch._C", "_cuda_endAllocateToPool"),
    PrivateName("torch._C", "_cuda_releasePool"),
    # The GPU memory allocator's history, for `diagnose --memory`, and calls that empty its cache.
    PrivateName("torch.cuda.memory", "_record_memory_history"),
    PrivateName("torch.cuda.memory", "_dump_snapshot"),
    PrivateName("torch._C", "_cuda_emptyCache"),
    PrivateName("torch._C", "_accelerator_emptyCache"),
    # Events of a watched run: files that are read and written, and steps of schedules.
    PrivateName("torch.serialization", "_open_zipfile_reader"),
    PrivateName("torch.serialization", "_open_zipfile_writer_file"),
    PrivateName("torch.serialization", "_open_zipfile_writer_buffer"),
    PrivateName("torch.serialization", "_save"),
    PrivateName("torch.serialization", "_load"),
    PrivateName("torch.serialization", "_legacy_load"),
    PrivateName("torch.nn.utils.clip_grad", "_clip_grads_with_norm_"),
    PrivateName("torch.optim.lr_scheduler", "LRScheduler._initial_step"),
    # Whether a closure may run before the step that it is given to.
    PrivateName("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
    # Modules that `torch.func` calls inside of its transforms.
    PrivateName("torch._C._functorch", "peek_interpreter_stack"),
    # Whether forwards of a watched run compute in float16; without it each device is asked.
    PrivateName("torch._C", "_is_any_autocast_enabled"),
    # `chunked_loss` inside a compiled region.
    PrivateName("torch", "_TorchCompileInductorWrapper"),
    # `compile` with a shorter formula of GELU.
    PrivateName("torch._inductor.decomposition", "register_decomposition"),
    # Which nodes of an autograd graph earlier steps have made, for `diagnose --memory`.
    PrivateName("torch.autograd.graph", "Node._sequence_nr"),
    # `diagnose --trace`: whether a script runs a profiler itself, and the lines of operators.
    PrivateName("torch.autograd", "_profiler_enabled"),
    PrivateName("torch._C._autograd", "_ProfilerResult.experimental_event_tree"),
    # What a watched rank says of sums of gradients.
    PrivateName("torch.nn.parallel", "DistributedDataParallel._get_ddp_logging_data"),
    PrivateName(
        "torch.nn.parallel", "DistributedDataParallel._set_ddp_runtime_logging_sample_rate"
    ),
    # `sharding`, before torch 2.13: zeros for parameters that got no gradient.
    PrivateName("torch.distributed.fsdp", "FSDPModule._get_fsdp_state"),
    PrivateName(
        "torch.distributed.fsdp._fully_shard._fsdp_param_group", "FSDPParamGroup.post_backward"
    ),
    # `sharding`, to hand back modules that can be sharded again.
    PrivateName("torch.distributed._composable_state", "_module_state_mapping"),
)
"""Names without which one technique does less, or refuses, or an event is not told; nothing else
changes."""


def find_optional(path: str) -> Any:
    """Return what one of the `OPTIONAL` names stands for, None if this torch lacks it."""
    (name,) = [name for name in OPTIONAL if name.path == path]
    return _value(name)


def _value(name: PrivateName) -> Any:
    try:
        value: Any = importlib.import_module(name.module)
    except ImportError:
        return None
    for part in name.path.split("."):
        value = getattr(value, part, None)
    return value


def missing_names() -> list[PrivateName]:
    """Return the names that this torch does not have. Imports torch."""
    return [name for name in NAMES if _value(name) is None]


def records_operators() -> bool:
    """True while a mode of torch's sees every operator, as a recorder or a profiler of shapes."""
    import torch

    return torch._C._len_torch_dispatch_stack() > 0


def drop_forward_hooks(module: Any) -> None:
    """Drop what is called behind the forwards of a module and its children, not before them."""
    for each in module.modules():
        each._forward_hooks.clear()


def compile_by_inductor(module: Any, inputs: Any, settings: Mapping[str, Any]) -> Any:
    """Compile a traced graph as `torch.compile` does, with Inductor's `settings`."""
    import torch

    return torch._TorchCompileInductorWrapper("default", dict(settings), None)(module, inputs)


def decompose_in_inductor(operator: Any, function: Callable[..., Any]) -> None:
    """Let Inductor compile an operator as the operators that a function calls."""
    from torch._inductor.decomposition import register_decomposition

    register_decomposition([operator])(function)


def restart_growth(scaler: Any) -> None:
    """Let a `GradScaler` count the steps after which its scale grows from 0 again.

    Given a scale, `update` counts on. Before the first loss was scaled there is no count.
    """
    count = getattr(scaler, "_growth_tracker", None)
    if count is not None:
        count.zero_()


def hide_worker_info() -> None:
    """Let `torch.utils.data.get_worker_info()` say None in this worker process.

    Raises:
        RunError: this torch keeps it elsewhere.
    """
    import torch
    from torch.utils.data import get_worker_info
    from torch.utils.data._utils import worker

    worker._worker_info = None
    if get_worker_info() is not None:
        raise RunError(
            f"with torch {torch.__version__}, the technique `workers` cannot read an iterable "
            "dataset in worker processes. Remove `workers` from the plan."
        )


def end_workers(batches: Any) -> None:
    """End the worker processes of a loader's iterator; one that hangs is not waited for.

    torch waits five seconds for each, and as long again.
    """
    workers = getattr(batches, "_workers", [])
    queues = getattr(batches, "_index_queues", [])
    done = getattr(batches, "_workers_done_event", None)
    if done is not None and not getattr(batches, "_shutdown", True):
        done.set()
        for queue in queues:
            queue.put(None)
        until = time.monotonic() + _PATIENCE_S
        for worker in workers:
            worker.join(timeout=max(0.0, until - time.monotonic()))
        hanging = [worker for worker in workers if worker.is_alive()]
        if hanging:
            _do_not_watch(batches)
        for worker in hanging:
            worker.kill()
            worker.join()
    getattr(batches, "_shutdown_workers", lambda: None)()


def _do_not_watch(batches: Any) -> None:
    """Let workers of an iterator be killed without torch raising an error of it."""
    from torch.utils.data._utils import signal_handling

    forget = getattr(signal_handling, "_remove_worker_pids", None)
    if forget is not None and getattr(batches, "_worker_pids_set", False):
        forget(id(batches))
        batches._worker_pids_set = False
