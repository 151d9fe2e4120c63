"""`evaluate`: the loss and the metrics of the held-out batches, summed over batches and ranks."""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy
import torch

from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluation_guard import evaluation_guard
from hotlap.engine.sources import first_batch
from hotlap.engine.step.sums import widen
from hotlap.errors import UsageError
from hotlap.task import Task

log = logging.getLogger("hotlap")

_TAKES_GRADIENTS = ("does not require grad", "Inference tensor")
"""What torch says of a gradient that is asked for in inference mode."""


_said: set[str] = set()
"""Buffers that were said to differ between ranks."""


class Stopped(Exception):
    """Whoever was asked to stop did, and nothing was measured."""


def evaluate(
    built: BuiltRun,
    *,
    batches: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    is_trial: bool = False,
) -> dict[str, float]:
    """Return the loss and the task's metrics on the held-out samples, NaN where none counted.

    Modes of the modules and every random state are as they were afterwards. A loss that takes
    gradients itself is measured again without inference mode, where it can.

    Args:
        built: what is trained.
        batches: only so many of the held-out samples; None for all.
        stop: asked before every batch.
        is_trial: before the first step. What the loss then makes and keeps for good, in a cache
            say, can be trained with.

    Raises:
        Stopped: `stop` said so.
        UsageError: the task's `evaluate` gave no mapping, or a measure no number.
    """
    try:
        return _evaluate(built, batches, stop, is_trial=is_trial)
    except RuntimeError as error:
        if not any(words in str(error) for words in _TAKES_GRADIENTS):
            raise
        return _evaluate(built, batches, stop, takes_gradients=True)


def _evaluate(
    built: BuiltRun,
    batches: int | None,
    stop: Callable[[], bool],
    *,
    takes_gradients: bool = False,
    is_trial: bool = False,
) -> dict[str, float]:
    if built.reduce.world > 1:
        _take_first_ranks_buffers(built)
    sums: dict[str, Any] = defaultdict(float)
    counts: dict[str, Any] = defaultdict(int)
    sharding: Any = built.sharding
    is_shared = bool(sharding) and sharding.shares_parameters
    keeps = is_shared or is_trial
    with evaluation_guard(built.model, takes_gradients=takes_gradients, makes_ordinary=keeps):
        given = _batches_together(built) if is_shared else _batches(built)
        for samples, batch in islice(given, batches):
            if stop():
                raise Stopped
            for name, value in _measure_batch(built.task, built.model, batch):
                if not samples:
                    continue
                total, count = _pair(name, value, samples)
                sums[name] = sums[name] + total
                counts[name] = counts[name] + count
    if is_shared:
        # No backward pass comes that would do it.
        sharding.reshard()
    found = {name: (float(sums[name]), float(counts[name])) for name in sums}
    totals: dict[str, tuple[float, float]] = {}
    # Of a rank without samples there is no name.
    for theirs in built.reduce.gather(found):
        for name, (total, count) in theirs.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + total, before[1] + count
    return {name: _mean(*pair) for name, pair in totals.items()}


@torch.no_grad()
def _take_first_ranks_buffers(built: BuiltRun) -> None:
    """Let all ranks have the buffers of the first one, and say which had others."""
    named = dict(built.model.named_buffers())
    firsts = [buffer.clone(memory_format=torch.contiguous_format) for buffer in named.values()]
    built.reduce.copy_tensors(firsts)
    differ = [float(not torch.equal(a, b)) for a, b in zip(firsts, named.values(), strict=True)]
    for buffer, first, is_other in zip(named.values(), firsts, differ, strict=True):
        # What nobody has written to is not to count as written.
        if is_other:
            buffer.copy_(first)
    found = built.reduce.sum_numbers(differ)
    other = next((name for name, count in zip(named, found, strict=True) if count), None)
    if other is not None and built.reduce.rank == 0 and other not in _said:
        _said.add(other)
        log.warning(
            "the model's buffer '%s' is computed from each rank's own samples: that of the first "
            "rank is used and saved",
            other,
        )


def _pair(name: str, value: Any, samples: int) -> tuple[Any, Any]:
    """Return (sum, count) of what a measure gave.

    Raises:
        UsageError: it gave something else.
    """
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        is_one = isinstance(number, torch.Tensor) and number.numel() == 1
        if len(numbers) > 2 or not (is_one or isinstance(number, int | float | numpy.number)):
            given = ", ".join(map(_describe, numbers))
            if isinstance(value, tuple):
                given = f"a tuple of {len(numbers)}, with elements {given},"
            raise UsageError(
                f"the metric {name!r} is {given} for a held-out batch. Expected: one number, the "
                "mean over the batch's samples, or (sum, count)."
            )
    total, *counted = (widen(number) for number in numbers)
    return (total, counted[0]) if counted else (total * samples, samples)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return f"of type {type(value).__name__}"


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


def _measure_batch(task: Task, model: Any, batch: Any) -> Iterator[tuple[str, Any]]:
    """Give the name and (sum, count), or mean, of each measure of a batch."""
    if task.evaluate is None:
        for name, measure in {"loss": task.loss, **task.metrics}.items():
            yield name, measure(model, batch)
        return
    found = task.evaluate(model, batch)
    if not isinstance(found, Mapping):
        raise UsageError(
            f"evaluate() returned {type(found).__name__}. Expected: a dict of name -> (sum, "
            "count), as in {'loss': (sum, count)}."
        )
    yield from found.items()


def _batches_together(built: BuiltRun) -> Iterator[tuple[int, Any]]:
    """Give as many batches as any rank has, since all of them gather the parameters together.

    Where this rank has fewer it gets one that it has had, of 0 samples.
    """
    assert built.held_out is not None
    batch: Any = None
    for step in built.held_out.epoch(0):
        most = int(built.reduce.most([float(len(step))])[0])
        for samples, batch in step:
            yield samples, batch
        if len(step) < most and batch is None:
            batch = first_batch(built.held_out, built.hardware)
        for _ in range(len(step), most):
            yield 0, batch


def _batches(built: BuiltRun) -> Iterator[tuple[int, Any]]:
    assert built.held_out is not None
    for step in built.held_out.epoch(0):
        yield from step
