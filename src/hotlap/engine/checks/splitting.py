"""Checks whether batch norm or CUDA graphs of `compile` rule out micro-batches of a step."""

from typing import Any

import torch

from hotlap.errors import UsageError
from hotlap.task import Task
from hotlap.techniques import StepTarget
from hotlap.techniques.compile import GRAPHED_MODES


def check_statistics(task: Task, model: Any, micro: int, world: int = 1) -> None:
    """Raise UsageError if batch norm would see parts of a step, of `micro` samples each.

    Args:
        task: what is learned.
        model: the model.
        micro: samples of a micro-batch.
        world: number of ranks that share a step.
    """
    if micro >= task.logical_batch or task.splits_statistics:
        return
    name = _batch_norm_of(model)
    if name is not None and world > 1:
        raise UsageError(
            f"a step of {task.logical_batch} samples is shared by {world} ranks, and batch norm "
            f"({name}) would compute its statistics per rank. Use a normalization without "
            "statistics of the batch, such as torch.nn.GroupNorm (torch.nn.SyncBatchNorm is "
            "refused, too), or train on one device. To accept this, set splits_statistics=True in "
            "the task."
        )
    if name is not None:
        raise UsageError(
            f"a step of {task.logical_batch} samples is split into micro-batches of {micro}, and "
            f"batch norm ({name}) would compute its statistics per micro-batch. Use another "
            "normalization, or set accumulate=1 in the task and remove --micro-batch and the "
            "plan's `micro_batch`. To accept this, set splits_statistics=True in the task."
        )


def check_gradients(task: Task, target: StepTarget, micro: int) -> None:
    """Raise UsageError if graphs that `compile` makes would overwrite gradients of a step."""
    if micro < task.logical_batch and _overwrites_gradients(target):
        raise UsageError(
            f"compile with mode='{target.notes['compile_mode']}' cannot be used in a step that is "
            f"split into micro-batches of {micro}: each CUDA graph overwrites the gradients of the "
            "previous micro-batch. Set mode = 'default' in the plan's [techniques.compile], or set "
            "accumulate=1 in the task and remove --micro-batch and the plan's `micro_batch`."
        )


def why_not_smaller(task: Task, model: Any, target: StepTarget) -> str | None:
    """Return why a step cannot be taken in smaller micro-batches than it is, None if it can."""
    name = None if task.splits_statistics else _batch_norm_of(model)
    if name is not None:
        return (
            f"batch norm ({name}) would compute its statistics per micro-batch: set "
            "splits_statistics=True in the task to accept this"
        )
    if _overwrites_gradients(target):
        return (
            f"the CUDA graphs of compile with mode='{target.notes['compile_mode']}' overwrite the "
            "gradients of the previous micro-batch: set mode = 'default' in the plan's "
            "[techniques.compile]"
        )
    return None


def _batch_norm_of(model: Any) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            return str(name)
    return None


def _overwrites_gradients(target: StepTarget) -> bool:
    return target.device == "cuda" and target.notes.get("compile_mode") in GRAPHED_MODES
