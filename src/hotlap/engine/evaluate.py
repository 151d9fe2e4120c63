"""Evaluation that does not disturb training."""

from collections.abc import Callable, Iterator
from typing import Any

from hotlap.engine.build import Built
from hotlap.engine.once import Once
from hotlap.engine.quiet import quietly


def evaluate(built: Built) -> dict[str, float]:
    """Return the loss and the task's metrics on the held-out samples.

    Modes of the modules and every random state are as they were afterwards.
    """
    task, model = built.task, built.model
    measures = {"loss": task.loss, **task.metrics}
    sums: dict[str, Any] = dict.fromkeys(measures, 0.0)
    counts: dict[str, Any] = dict.fromkeys(measures, 0)
    with quietly(model):
        once = Once(model)
        for samples, batch in _batches(built):
            with once.batch():
                for name, measure in measures.items():
                    value, counted = _measured(measure, model, batch, samples)
                    sums[name] = sums[name] + value
                    counts[name] = counts[name] + counted
    return {name: float(sums[name]) / float(counts[name]) for name in measures}


def _measured(
    measure: Callable[[Any, Any], Any], model: Any, batch: Any, samples: int
) -> tuple[Any, Any]:
    value = measure(model, batch)
    return value if isinstance(value, tuple) else (value * samples, samples)


def _batches(built: Built) -> Iterator[tuple[int, Any]]:
    assert built.held_out is not None
    for step in built.held_out.epoch(0):
        yield from step
