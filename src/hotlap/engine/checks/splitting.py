"""Whether a step may be taken in micro-batches."""

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
                f"a step of {task.logical_batch} samples in micro-batches of {micro}, with batch "
                f"norm ({name}): its statistics would be those of a part. Allowed: whole steps, "
                "another normalisation, or splits_statistics=True if that is meant."
            )


def check_gradients(task: Task, target: StepTarget, micro: int) -> None:
    """Raise UsageError if graphs that `compile` makes would overwrite gradients of a step."""
    mode = target.notes.get("compile_mode")
    if target.device == "cuda" and mode in GRAPHED_MODES and micro < task.logical_batch:
        raise UsageError(
            f"compile in mode='{mode}' with steps in micro-batches: the next one's graph writes "
            "over the gradients of the one before. Allowed: mode='default', or whole steps."
        )
