"""Evaluation that does not disturb training."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hotlap.engine.build import Built
from hotlap.engine.quiet import quietly
from hotlap.errors import UsageError
from hotlap.task import Task

_TAKES_GRADIENTS = ("does not require grad", "Inference tensor")
"""What torch says of a gradient that is asked for in inference mode."""


def evaluate(built: Built) -> dict[str, float]:
    """Return the loss and the task's metrics on the held-out samples, NaN where none counted.

    Modes of the modules and every random state are as they were afterwards. A loss that takes
    gradients itself is measured again without inference mode, where it can.

    Raises:
        UsageError: the task's `evaluate` gave no mapping.
    """
    try:
        return _evaluate(built)
    except RuntimeError as error:
        if not any(words in str(error) for words in _TAKES_GRADIENTS):
            raise
        return _evaluate(built, takes_gradients=True)


def _evaluate(built: Built, *, takes_gradients: bool = False) -> dict[str, float]:
    sums: dict[str, Any] = defaultdict(float)
    counts: dict[str, Any] = defaultdict(int)
    with quietly(built.model, takes_gradients=takes_gradients):
        for samples, batch in _batches(built):
            for name, value in _measured(built.task, built.model, batch):
                total, count = (
                    value if isinstance(value, tuple) else (wide(value) * samples, samples)
                )
                sums[name] = sums[name] + wide(total)
                counts[name] = counts[name] + wide(count)
    return {name: _mean(float(sums[name]), float(counts[name])) for name in sums}


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


def wide(number: Any) -> Any:
    """Return a scalar in a format that can hold a sum of many."""
    if not isinstance(number, torch.Tensor):
        return number
    return number.detach().to(torch.float32 if number.device.type == "mps" else torch.float64)


def _measured(task: Task, model: Any, batch: Any) -> Iterator[tuple[str, Any]]:
    """Give the name and (sum, count), or mean, of each measure of a batch."""
    if task.evaluate is None:
        for name, measure in {"loss": task.loss, **task.metrics}.items():
            yield name, measure(model, batch)
        return
    found = task.evaluate(model, batch)
    if not isinstance(found, Mapping):
        raise UsageError(
            f"evaluate() gave {type(found).__name__}. Allowed: a dictionary, name -> (sum, count)."
        )
    yield from found.items()


def _batches(built: Built) -> Iterator[tuple[int, Any]]:
    assert built.held_out is not None
    for step in built.held_out.epoch(0):
        yield from step
