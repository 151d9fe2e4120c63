"""Evaluation that does not disturb training."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotlap.engine.build import Built
from hotlap.feed import fixed
from hotlap.feed.transfer import to_device


def evaluate(built: Built) -> dict[str, float]:
    """Return the loss and the task's metrics on the held-out samples.

    Modes of the modules and every random state are as they were afterwards.
    """
    task, model = built.task, built.model
    modes = {module: module.training for module in model.modules()}
    states = fixed.global_random_states()
    model.eval()
    measures = {"loss": task.loss, **task.metrics}
    sums: dict[str, Any] = dict.fromkeys(measures, 0.0)
    counts: dict[str, Any] = dict.fromkeys(measures, 0)
    try:
        with torch.inference_mode():
            for samples, batch in _batches(built):
                for name, measure in measures.items():
                    value, counted = _measured(measure, model, batch, samples)
                    sums[name] = sums[name] + value
                    counts[name] = counts[name] + counted
    finally:
        for module, training in modes.items():
            module.training = training
        fixed.restore(states)
    return {name: float(sums[name]) / float(counts[name]) for name in measures}


def _measured(
    measure: Callable[[Any, Any], Any], model: Any, batch: Any, samples: int
) -> tuple[Any, Any]:
    value = measure(model, batch)
    return value if isinstance(value, tuple) else (value * samples, samples)


def _batches(built: Built) -> Iterator[tuple[int, Any]]:
    assert built.held_out is not None
    for step in built.held_out.epoch(0):
        for samples, batch in step:
            yield samples, batch if built.device == "cpu" else to_device(batch, built.device)
