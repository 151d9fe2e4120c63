"""Checks that a checkpoint is of the same task as the run that resumes from it."""

from collections.abc import Mapping
from typing import Any

import torch

from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import BuiltRun
from hotlap.errors import UsageError

_MEANINGS = {
    "samples": " (the number of samples in data)",
    "logical_batch": " (batch_size times accumulate)",
    "budget": " (a hash of lengths, tokens_per_batch and the lengths to pad to)",
}
"""Keys that are no arguments of a task -> what they say."""


def fingerprint(built: BuiltRun) -> dict[str, Any]:
    """Return what must be the same for a run to go on: what is learned, and from what."""
    task = built.task
    return {
        "samples": task.samples,
        "shuffle_buffer": task.shuffle_buffer if task.is_stream and task.shuffle else None,
        "logical_batch": task.logical_batch,
        "budget": None if task.budget is None else task.budget.digest,
        "accumulate": None if task.budget is None else task.accumulate,
        "seed": task.seed,
        "shuffle": task.shuffle,
        "drop_last": task.drop_last,
        "transform": _name_of(task.transform),
        "batch_transform": _name_of(task.batch_transform),
        "clip_norm": task.clip_norm,
        "clip_value": task.clip_value,
        "schedule_per": task.schedule_per,
        "weights": {
            name: list(value.shape)
            for name, value in built.model.state_dict().items()
            if isinstance(value, torch.Tensor)
        },
        "optimizer": type(built.optimizer).__name__,
        "hyperparameters": built.hyperparameters,
        "schedule": None if built.scheduler is None else type(built.scheduler).__name__,
        "schedule's values": built.schedule_values,
    }


def _name_of(function: Any) -> str | None:
    return None if function is None else getattr(function, "__qualname__", type(function).__name__)


def check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any], where: Checkpoint) -> None:
    """Raise UsageError, which names what differs, if two fingerprints are not alike."""
    for key in ours:
        if theirs.get(key) != ours[key]:
            old, new, meaning = theirs.get(key), ours[key], _MEANINGS.get(key, "")
            if isinstance(old, dict) and isinstance(new, dict):
                name = min(k for k in old | new if old.get(k) != new.get(k))
                key, old, new = f"{key} ({name})", old.get(name), new.get(name)
            raise UsageError(
                f"checkpoint '{where.path}' was saved by another task: {key} was {old}, now it is "
                f"{new}{meaning}. Resume with the recipe and the parameters of the checkpoint's "
                "run. Only `epochs` or `steps` of the task may change, and nothing that depends on "
                "them, such as a schedule's length."
            )
