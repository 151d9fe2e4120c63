"""Checks that all ranks of a run begin with the same task, plan, model and checkpoint."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from hotlap.checkpoint.read import Checkpoint, read_manifest
from hotlap.distributed.reduce import Reduce
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.task.data_sets import samples_in

_COMPARED = (
    "seed",
    "batch_size",
    "tokens_per_batch",
    "accumulate",
    "epochs",
    "steps",
    "samples",
    "steps_per_epoch",
    "shuffle",
    "shuffle_buffer",
    "drop_last",
    "splits_statistics",
    "clip_norm",
    "clip_value",
    "schedule_per",
)
"""Attributes of a task by which ranks share its steps."""
_DATA = (
    "Pass the whole dataset on every rank, for each rank takes its own share of every step; and "
    "split or shuffle it only with a fixed seed."
)
_PLAN = (
    "A plan is used in full only on a machine like the one where it was measured; elsewhere, only "
    "its exact techniques are used. Start the ranks on machines with the same CPU and the same "
    "torch, or remove --plan."
)
_SAME = (
    "Remove from the recipe what differs between processes, such as the current time, and use the "
    "same packages and environment variables on every host."
)


def check_batch(task: Task, reduce: Reduce) -> None:
    """Raise UsageError if a step has fewer samples than there are ranks, on every rank alike."""
    if task.logical_batch < reduce.world:
        raise UsageError(
            f"a step has {task.logical_batch} samples, fewer than the {reduce.world} ranks that "
            f"share them. Increase batch_size (or tokens_per_batch) in the task until a step has "
            f"at least {reduce.world} samples, or use at most {task.logical_batch} devices."
        )


def check_task(task: Task, plan: Plan, reduce: Reduce) -> None:
    """Raise UsageError if the ranks were given different tasks or plans, on every rank alike."""
    if reduce.world == 1:
        return
    values = {f"the task's {name}": repr(getattr(task, name)) for name in _COMPARED}
    data = {
        "the number of samples in held_out": repr(samples_in(task.held_out)),
        "the digest of some samples of data": _samples_of(task.data),
        "the digest of some samples of held_out": _samples_of(task.held_out),
    }
    own = {"the plan": str(plan), **values, **data}
    found = _first_other(reduce, own)
    if found is None:
        return
    rank, name, first, other = found
    advice = {"the plan": _PLAN, **dict.fromkeys((*data, "the task's samples"), _DATA)}
    raise UsageError(
        f"{name} is {other} on rank {rank}, but {first} on rank 0. Expected: the same on every "
        f"rank. {advice.get(name, _SAME)}"
    )


def check_start(
    saved: Checkpoint | None, failure: Exception | None, values: Mapping[str, Any], reduce: Reduce
) -> None:
    """Raise UsageError if the ranks would not begin alike, on every rank alike.

    Args:
        saved: what this rank has found to go on from.
        failure: why it cannot be loaded; None if it was.
        values: what else has to be the same, by name.
        reduce: the ranks.
    """
    if reduce.world == 1:
        return
    step = "none" if saved is None else f"'{saved.path.name}'"
    own = {
        "the checkpoint to resume from": step,
        "the checkpoint's checksum": "none"
        if saved is None
        else read_manifest(saved.path)["checksum"],
        f"checkpoint {step}": "loaded" if failure is None else "damaged, so not loaded",
        **{name: repr(value) for name, value in values.items()},
    }
    found = _first_other(reduce, own)
    if found is None:
        return
    rank, name, first, other = found
    advice = _SAME
    if name not in values:
        advice = (
            "Use a --run-dir that all nodes share, or copy the newest intact checkpoint of one "
            "node into the run folder of every node."
        )
    raise UsageError(
        f"{name} is {other} on rank {rank}, but {first} on rank 0. Expected: the same on every "
        f"rank. {advice}"
    )


def check_given(given: Mapping[str, Any], source: Any, reduce: Reduce) -> None:
    """Raise UsageError if the ranks were given other weights to begin with, on every rank alike.

    Args:
        given: the weights by name, and whatever is taken with them.
        source: where they were read.
        reduce: the ranks.
    """
    if reduce.world == 1:
        return
    found = _first_other(reduce, {name: _digest(value) for name, value in given.items()})
    if found is not None:
        rank, name, *_ = found
        raise UsageError(
            f"'{name}' in '{source}' differs between rank {rank} and rank 0. Expected: the same "
            "file on every rank. Copy one file to that path on every node, or pass a path that all "
            "nodes share."
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
    own = {name: _digest(value) for name, value in model.state_dict().items()}
    found = _first_other(reduce, own)
    if found is not None:
        rank, name, *_ = found
        raise UsageError(
            f"model() returned a different '{name}' on rank {rank} than on rank 0. Expected: "
            "the same model on every rank. The seed is set before model(). Remove other "
            "differences between processes, such as the order of a set, the time, or a file "
            "that only one of them has."
        )


def _first_other(reduce: Reduce, own: Mapping[str, str]) -> tuple[int, str, Any, Any] | None:
    """Return the first rank that has told another text than rank 0: its number, the text's name,
    that of rank 0, and its own; None if all ranks have told the same."""
    found = reduce.gather(dict(own))
    for rank, theirs in enumerate(found):
        if theirs != found[0]:
            names = [*found[0], *(name for name in theirs if name not in found[0])]
            name = next(name for name in names if theirs.get(name) != found[0].get(name))
            return rank, name, found[0].get(name), theirs.get(name)
    return None


def _samples_of(data: Any) -> str:
    """Return a digest of what can be read of a dataset at once, and without its own code: which
    samples a subset has, and some rows of tensors."""
    said = []
    while type(data) is Subset:
        indices: Any = data.indices
        numbers = indices.tolist() if hasattr(indices, "tolist") else [*indices]
        said.append(_digest(numbers))
        data = data.dataset
    if type(data) is TensorDataset and len(data):
        rows = [0, len(data) // 2, len(data) - 1]
        dense = [each for each in data.tensors if each.layout == torch.strided]
        said += [_digest(each[rows]) for each in dense]
    return hashlib.sha256(repr(said).encode()).hexdigest()[:12]


def _digest(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    form = f"{tuple(value.shape)} {value.dtype} "
    return hashlib.sha256(form.encode() + raw).hexdigest()
