"""`steps_of` and `hotlap.steps`: take a run's steps one by one; `StepDone`: what a step gives."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.distributed.own_group import ranks_here
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.loss_errors import raise_explained
from hotlap.engine.retries import Retries
from hotlap.engine.state.position import Position
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN
from hotlap.techniques.applying import recorded_operators

log = logging.getLogger("hotlap")


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
    built: BuiltRun
    items: Any = None
    """What the loss counted, where it gives (sum, count)."""
    count: int = 1
    """Steps that this stands for, of which it tells the last one; more than one only in
    `hotlap.train`, see `hotlap.engine.train_loop`. `samples` are those of all."""
    totals: Any = None
    """The epoch's sums after it, where the device has added them up, see `EpochClock`."""

    @property
    def after(self) -> Position:
        """Where the run is once this step is done."""
        if self.ends_epoch:
            return Position(self.number, self.epoch, 0)
        return Position(self.number, self.epoch - 1, self.in_epoch)

    @property
    def model(self) -> Any:
        return self.built.model

    @property
    def scheduler(self) -> Any:
        """The schedule, None if there is none; waits for the device where it follows there."""
        self.built.step.settle()
        return self.built.scheduler


def steps(
    task: Task, plan: Plan | None = None, *, device: str | None = None, check_finite: bool = True
) -> Iterator[StepDone]:
    """Train, one step at a time, for people who keep their own loop.

    One loop at a time: two of them would draw from the same random generators of the process. The
    model has the trained weights in their own format once the loop is over, or closed. Held-out
    samples are yours to look at, and so is a schedule that waits for a measurement:
    `step.scheduler.step(loss)` where `step.ends_epoch`.

    Args:
        task: what is learned.
        plan: how it is executed; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU.
        check_finite: leave out updates whose loss is not finite.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: something in the task is not what it says it is, or this process is one of
            several ranks.

    >>> for step in hotlap.steps(task):                      # doctest: +SKIP
    ...     if step.number % 100 == 0:
    ...         print(step.number, float(step.loss))
    """
    world = ranks_here().world
    if world > 1:
        raise UsageError(
            f"hotlap.steps trains in one process, and this is one of {world} ranks, each of which "
            "would train its own model. Use hotlap.train; or unset WORLD_SIZE (under Slurm, "
            "SLURM_STEP_NUM_TASKS) if this is the only process."
        )
    chosen = EXACT_PLAN if plan is None else plan
    # Between two steps the loop may look at the rates, and set them.
    built = build(task, chosen, device=device, check_finite=check_finite, follows_schedule=False)
    taken = steps_of(built, retries=Retries(built, log.warning))
    # A generator around the generator costs: only a plan that left something to undo pays for it.
    if not (built.switched.is_set or built.ended):
        return taken
    undone = _undo_at_end(taken, built)
    # Begun at once: one that nobody ever asks for a step puts everything back as well.
    next(undone)
    return undone


def _undo_at_end(taken: Iterator[StepDone], built: BuiltRun) -> Iterator[Any]:
    """Put everything back when the loop is over, or left. The first item is no step."""
    try:
        yield None
        yield from taken
    finally:
        built.end()


def steps_of(
    built: BuiltRun, begin: Position | None = None, *, retries: Retries | None = None
) -> Iterator[StepDone]:
    """Train what was built, one step at a time.

    Args:
        built: the run.
        begin: where; its start if None.
        retries: takes steps again that run out of memory; if None the error is raised.
    """
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
        for in_epoch, samples, loss, is_taken in epoch_of(built, epoch, first, number, retries):
            if number == begin.step:
                check_first(built, is_taken)
            number += 1
            if number == recorded:
                take.update.recorder = recorded_operators(built.operators)
            ends = in_epoch == source.last
            if scheduler is not None and not take.follows_schedule and is_taken:
                scheduler.step()
            if ends and built.scheduler is not None and steps_each_epoch(built):
                built.scheduler.step()
            yield StepDone(
                number, epoch + 1, in_epoch, loss, samples, is_taken, ends, built, take.items
            )
            if number == total:
                return
        first = 0


def epoch_of(
    built: BuiltRun, epoch: int, first: int, number: int, retries: Retries | None
) -> Iterator[tuple[int, int, Any, Any]]:
    """Take the steps of an epoch; give of each (number in the epoch, samples, loss, is taken).

    Args:
        built: the run.
        epoch: from 0.
        first: step of the epoch to begin with, from 0.
        number: of the steps before that, in the whole run.
        retries: see `steps_of`.
    """
    before, in_epoch, take = number - first, first, built.step
    keep = (lambda: None) if retries is None else retries.keep
    give, ranks = built.source.epoch, take.ranks
    while True:
        given, micros, asked = give(epoch, in_epoch), None, ""
        try:
            for micros in given:
                keep()
                samples = micros[0][0] if len(micros) == 1 else sum(n for n, _ in micros)
                if ranks is not None:
                    samples = ranks.samples = built.source.count_samples(epoch, in_epoch)
                    ranks.number = before + in_epoch + 1
                try:
                    loss, is_taken = take(micros)
                except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
                    raise_explained(error)
                    raise
                in_epoch += 1
                micros = None
                yield in_epoch, samples, loss, is_taken
            return
        except RuntimeError as error:
            if retries is None or not is_out_of_memory(error):
                raise
            retries.check(error, micros, before + in_epoch + 1)
            asked, was_read = str(error).partition("\n")[0], micros is not None
        # Both hold the failed attempt.
        del given, micros
        retries.prepare(asked, was_read=was_read)
        give = built.source.again


def check_first(built: BuiltRun, is_taken: Any) -> None:
    """Refuse a loss that leads to nothing that is trained."""
    trained = [each for group in built.optimizer.param_groups for each in group["params"]]
    if is_taken is True and all(parameter.grad is None for parameter in trained):
        raise UsageError(
            "the loss of the first step gave no gradient to any parameter of the optimizer, so "
            "nothing would be learned. In loss(model, batch), use the output of the `model` that "
            "is passed to it; in optimizer(model), pass the parameters that this output depends on."
        )


def waits_for_measure(built: BuiltRun) -> bool:
    """True if the schedule steps on a measurement of each epoch, which the loop does not make."""
    return isinstance(built.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)


def steps_each_epoch(built: BuiltRun) -> bool:
    """True if the schedule steps at the end of each epoch, without a measurement."""
    return built.task.schedule_per == "epoch" and not waits_for_measure(built)
