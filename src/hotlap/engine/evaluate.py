"""`evaluate`: the loss and the metrics of the held-out batches, summed over batches and ranks."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy
import torch

from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluation_guard import evaluation_guard
from hotlap.engine.sources import first_batch
from hotlap.engine.step.learned_buffers import say_each_ranks, say_first_ranks
from hotlap.engine.step.sums import widen
from hotlap.errors import UsageError
from hotlap.nested import copy_of
from hotlap.task import Task

_TAKES_GRADIENTS = ("does not require grad", "Inference tensor")
"""What torch says of a gradient that is asked for in inference mode."""


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
    found: dict[str, tuple[float, float]] = {}
    is_refused = False
    try:
        found = _measure(built, batches, stop, is_trial=is_trial)
    except RuntimeError as error:
        if not any(words in str(error) for words in _TAKES_GRADIENTS):
            raise
        is_refused = True
    told = built.reduce.gather([is_refused, found])
    # All ranks measure again, or none: to one without held-out samples nothing is refused.
    if any(theirs for theirs, _ in told):
        again = _measure(built, batches, stop, takes_gradients=True)
        told = built.reduce.gather([False, again])
    return _add_up([theirs for _, theirs in told])


def _measure(
    built: BuiltRun,
    batches: int | None,
    stop: Callable[[], bool],
    *,
    takes_gradients: bool = False,
    is_trial: bool = False,
) -> dict[str, tuple[float, float]]:
    """Return (sum, count) of each measure over this rank's batches."""
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
    return {name: (float(sums[name]), float(counts[name])) for name in sums}


def _add_up(told: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return the mean of each measure, given (sum, count) of each rank."""
    totals: dict[str, tuple[float, float]] = {}
    # Of a rank without samples there is no name.
    for theirs in told:
        for name, (total, count) in theirs.items():
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + total, before[1] + count
    return {name: _mean(*pair) for name, pair in totals.items()}


@torch.no_grad()
def _take_first_ranks_buffers(built: BuiltRun) -> None:
    """Let all ranks have the buffers of the first one, and say which had others.

    One that has another form on some rank, or is missing there, stays what it is on each of them.
    """
    held = {name: b for name, b in built.model.named_buffers() if b.layout == torch.strided}
    told = built.reduce.gather({name: [list(b.shape), str(b.dtype)] for name, b in held.items()})
    every = dict.fromkeys(name for theirs in told for name in theirs)
    # In one order on all ranks.
    agreed = [name for name in every if all(each.get(name) == told[0].get(name) for each in told)]
    named = {name: held[name] for name in agreed}
    firsts = [buffer.clone(memory_format=torch.contiguous_format) for buffer in named.values()]
    built.reduce.copy_tensors(firsts)
    differ = [float(not torch.equal(a, b)) for a, b in zip(firsts, named.values(), strict=True)]
    for buffer, first, is_other in zip(named.values(), firsts, differ, strict=True):
        # What nobody has written to is not to count as written.
        if is_other:
            buffer.copy_(first)
    found = built.reduce.sum_numbers(differ)
    other = next((name for name, count in zip(named, found, strict=True) if count), None)
    if other is not None and built.reduce.rank == 0:
        say_first_ranks(other)
    if built.reduce.rank == 0:
        for name in [name for name in every if name not in named]:
            say_each_ranks(name)


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
                f"the metric {name!r} is {given} for a held-out batch. Return one number, the mean "
                "over the batch's samples, or a tuple (sum, count) from the function that computes "
                "this metric."
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
        *others, (last, measure) = {"loss": task.loss, **task.metrics}.items()
        for name, other in others:
            # Each may write into what it is given, or take entries out of it.
            yield name, other(model, copy_of(batch))
        yield last, measure(model, batch)
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

    Where this rank has fewer it gets its first one again, of 0 samples.
    """
    assert built.held_out is not None
    spare: Any = None
    for step in built.held_out.epoch(0):
        most = int(built.reduce.most([float(len(step))])[0])
        if spare is None and step:
            # As it was read: what it is measured with may write into it.
            spare = copy_of(step[0][1])
        yield from step
        if len(step) < most and spare is None:
            spare = first_batch(built.held_out, built.hardware)
        for _ in range(len(step), most):
            yield 0, copy_of(spare)


def _batches(built: BuiltRun) -> Iterator[tuple[int, Any]]:
    assert built.held_out is not None
    for step in built.held_out.epoch(0):
        yield from step
