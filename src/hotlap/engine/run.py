"""The loop: one optimizer step after another."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from hotlap.engine.build import Built, build
from hotlap.engine.state import Position
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN
from hotlap.techniques.applying import recorded_operators


# Not frozen: that would cost a microsecond and a half a step.
@dataclass(slots=True)
class StepDone:
    """One optimizer step."""

    number: int
    """From 1."""
    epoch: int
    """From 1."""
    in_epoch: int
    """Number of the step in its epoch, from 1."""
    loss: Any
    """Mean over the step's items; a scalar on the device, which nobody has waited for."""
    samples: int
    is_taken: Any
    """False if the update was left out because something was not finite. Where the device decides
    that, asking waits for it."""
    ends_epoch: bool
    built: Built

    @property
    def after(self) -> Position:
        """Where the run is once this step is done."""
        if self.ends_epoch:
            return Position(self.number, self.epoch, 0)
        return Position(self.number, self.epoch - 1, self.in_epoch)

    @property
    def model(self) -> Any:
        return self.built.model


def steps(
    task: Task, plan: Plan | None = None, *, device: str | None = None, check_finite: bool = True
) -> Iterator[StepDone]:
    """Train, one step at a time, for people who keep their own loop.

    Args:
        task: what is learned.
        plan: how it is executed; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU.
        check_finite: leave out updates whose loss is not finite.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: something in the task is not what it says it is.

    >>> for step in hotlap.steps(task):                      # doctest: +SKIP
    ...     if step.number % 100 == 0:
    ...         print(step.number, float(step.loss))
    """
    chosen = EXACT_PLAN if plan is None else plan
    built = build(task, chosen, device=device, check_finite=check_finite)
    taken = steps_of(built)
    # A generator around the generator costs: only a plan that has set switches pays for it.
    return _undone(taken, built) if built.switched.is_set else taken


def _undone(taken: Iterator[StepDone], built: Built) -> Iterator[StepDone]:
    """Put the switches of the process back when the loop is over, or left."""
    try:
        yield from taken
    finally:
        built.switched.undo()


def steps_of(built: Built, begin: Position | None = None) -> Iterator[StepDone]:
    """Train what was built, one step at a time, from `begin` or the start."""
    begin = begin or Position()
    task, source, take = built.task, built.source, built.step
    total, number = task.total_steps, begin.step
    first = begin.in_epoch
    recorded = begin.step + 1 if built.applied.wants("optimizer") else None
    scheduler = built.scheduler if task.schedule_per == "step" else None
    if total is not None and number >= total:
        return
    # Without a number of steps, the epochs of a stream end when it does.
    epochs = count(begin.epoch) if total is not None else range(begin.epoch, task.epochs or 0)
    for epoch in epochs:
        for in_epoch, micros in enumerate(source.epoch(epoch, first), first + 1):
            if number == recorded:
                take.recorder = recorded_operators(built.operators)
            try:
                loss, is_taken = take(micros)
            except IndexError as error:
                raise _explained(error) from error
            number += 1
            ends = in_epoch == source.last
            if scheduler is not None and is_taken:
                scheduler.step()
            samples = micros[0][0] if len(micros) == 1 else sum(n for n, _ in micros)
            if ends and built.scheduler is not None and _steps_each_epoch(built):
                built.scheduler.step()
            yield StepDone(number, epoch + 1, in_epoch, loss, samples, is_taken, ends, built)
            if number == total:
                return
        first = 0


def _explained(error: IndexError) -> Exception:
    """Return what a user can act on, where torch says only what it stumbled over."""
    found = re.search(r"Target (-?\d+) is out of bounds", str(error))
    if found is None:
        return error
    return UsageError(
        f"the data gave the label {found[1]}, for which the model has no output. Allowed: labels "
        "from 0 to one less than the model's outputs; `ignore_index` for those that do not count."
    )


def waits_for_measure(built: Built) -> bool:
    """True if the schedule steps on a measurement of each epoch, which the loop does not make."""
    return isinstance(built.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def _steps_each_epoch(built: Built) -> bool:
    return built.task.schedule_per == "epoch" and not waits_for_measure(built)
