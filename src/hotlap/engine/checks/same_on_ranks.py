"""Checks that all ranks of a run begin with the same task and the same model."""

import hashlib
from typing import Any

import torch

from hotlap.distributed.reduce import Reduce
from hotlap.errors import UsageError
from hotlap.task import Task


def check_batch(task: Task, reduce: Reduce) -> None:
    """Raise UsageError if a step has fewer samples than there are ranks, on every rank alike."""
    if task.logical_batch < reduce.world:
        raise UsageError(
            f"a step has {task.logical_batch} samples, fewer than the {reduce.world} ranks that "
            f"share them. Use a batch size of at least {reduce.world}, or fewer devices."
        )


def check_model(model: Any, reduce: Reduce) -> None:
    """Raise UsageError if the ranks have made different models, or one that they cannot share, on
    every rank alike."""
    if reduce.world == 1:
        return
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise UsageError(
                f"the module '{name}' has sparse gradients, which are not summed over ranks. Set "
                "sparse=False in the module, or use one device."
            )
    found = reduce.gather({name: _digest(value) for name, value in model.state_dict().items()})
    for rank, theirs in enumerate(found):
        if theirs != found[0]:
            names = [*found[0], *(name for name in theirs if name not in found[0])]
            name = next(name for name in names if theirs.get(name) != found[0].get(name))
            raise UsageError(
                f"model() returned a different '{name}' on rank {rank} than on rank 0. Expected: "
                "the same model on every rank. The seed is set before model(). Remove other "
                "differences between processes, such as the order of a set, the time, or a file "
                "that only one of them has."
            )


def _digest(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    form = f"{tuple(value.shape)} {value.dtype} "
    return hashlib.sha256(form.encode() + raw).hexdigest()
