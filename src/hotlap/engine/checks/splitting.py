"""Checks whether a step may be split into micro-batches."""

from typing import Any

import torch

from hotlap.errors import UsageError
from hotlap.task import Task
from hotlap.techniques import StepTarget
from hotlap.techniques.compile import GRAPHED_MODES


def check_statistics(task: Task, model: Any, micro: int) -> None:
    """Raise UsageError if batch norm would see parts of a step, of `micro` samples each."""
    if micro >= task.logical_batch or task.splits_statistics:
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise UsageError(
                f"a step of {task.logical_batch} samples is split into micro-batches of {micro}, "
                f"and batch norm ({name}) would compute its statistics per micro-batch. Use "
                "another normalization, do not split the step, or set splits_statistics=True to "
                "accept this."
            )


def check_gradients(task: Task, target: StepTarget, micro: int) -> None:
    """Raise UsageError if graphs that `compile` makes would overwrite gradients of a step."""
    mode = target.notes.get("compile_mode")
    if target.device == "cuda" and mode in GRAPHED_MODES and micro < task.logical_batch:
        raise UsageError(
            f"compile with mode='{mode}' and a step split into micro-batches of {micro}: each CUDA "
            "graph overwrites the gradients of the previous micro-batch. Use mode='default', or do "
            "not split the step."
        )
