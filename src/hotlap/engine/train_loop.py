"""The loop of `hotlap.train` over epochs and steps, of which a CUDA graph may take several."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from hotlap.device.out_of_memory import is_out_of_memory
from hotlap.engine.build import BuiltRun
from hotlap.engine.retries import Retries
from hotlap.engine.state.position import Position
from hotlap.engine.step.graph import CapturedGraph
from hotlap.engine.steps import StepDone, check_first, epoch_of, steps_each_epoch, steps_of
from hotlap.feed.sources.device_epoch import DeviceEpoch

Cut = Callable[[int], int]
"""`cut(number) -> steps` that may be taken before somebody has to look, after so many steps."""


def take_steps(
    built: BuiltRun,
    begin: Position,
    retries: Retries,
    cut: Cut | None,
    totals: Callable[[], tuple[Any, Any]],
) -> Iterator[StepDone]:
    """Train what was built, as `steps_of` does; give the last step of each launch.

    Args:
        built: the run.
        begin: where.
        retries: takes steps again that run out of memory.
        cut: a launch takes no more steps than it says; None for any number.
        totals: gives the sums of the epoch so far, see `EpochClock`.
    """
    if built.step.executor.blocks is None:
        return steps_of(built, begin, retries=retries)
    return _in_blocks(built, begin, retries, cut or (lambda _: sys.maxsize), totals)


def _in_blocks(
    built: BuiltRun,
    begin: Position,
    retries: Retries,
    cut: Cut,
    totals: Callable[[], tuple[Any, Any]],
) -> Iterator[StepDone]:
    task = built.task
    total, number, first = task.total_steps, begin.step, begin.in_epoch
    scheduler = built.scheduler if task.schedule_per == "step" else None
    if total is not None and number >= total:
        return
    epochs = count(begin.epoch) if total is not None else range(begin.epoch, task.epochs or 0)
    for epoch in epochs:
        limit = _limited(cut, total)
        for done in _epoch(built, epoch, first, number, retries, limit, totals):
            if number == begin.step:
                check_first(built, done.is_taken)
            number += done.count
            if scheduler is not None and not built.step.follows_schedule and done.is_taken:
                scheduler.step()
            if done.ends_epoch and built.scheduler is not None and steps_each_epoch(built):
                built.scheduler.step()
            yield done
            if total is not None and number >= total:
                return
        first = 0


def _limited(cut: Cut, total: int | None) -> Cut:
    """Return `cut`, no further than the run's end."""
    return lambda number: cut(number) if total is None else min(cut(number), total - number)


def _epoch(
    built: BuiltRun,
    epoch: int,
    first: int,
    number: int,
    retries: Retries,
    cut: Cut,
    totals: Callable[[], tuple[Any, Any]],
) -> Iterator[StepDone]:
    """Take the steps of an epoch."""
    rows = DeviceEpoch.begin(built.source, epoch, built.device)
    if rows is None:
        yield from _singly(built, epoch, first, number, retries)
        return
    in_epoch, last = first, len(rows)
    executor = built.step.executor
    assert isinstance(executor, CapturedGraph)
    while in_epoch < last:
        micros, asked, update = None, "", built.step.update
        update.has_begun = False
        try:
            retries.keep()
            most = min(rows.whole - in_epoch, cut(number))
            block = executor.take_block(rows, in_epoch, most, totals)
            micros = rows.read(in_epoch) if block is None else None
            decided = None if micros is None else built.step(micros)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            retries.check(error, micros, number + 1, has_begun=update.has_begun)
            asked, was_read = str(error).partition("\n")[0], micros is not None
        else:
            if block is not None:
                in_epoch, number = in_epoch + block.count, number + block.count
                _follow(built, block.count)
                yield StepDone(
                    number, epoch + 1, in_epoch, block.loss, rows.batch * block.count,
                    block.is_taken, in_epoch == last, built, block.items, block.count, block.totals,
                )  # fmt: skip
                continue
            assert micros is not None and decided is not None
            (loss, is_taken), decided = decided, None
            in_epoch, number = in_epoch + 1, number + 1
            samples = sum(count for count, _ in micros)
            micros = None
            yield StepDone(
                number, epoch + 1, in_epoch, loss, samples, is_taken, in_epoch == last, built,
                built.step.items,
            )  # fmt: skip
            continue
        # It holds the failed attempt. The rest of the epoch is taken by the loop that knows how.
        del micros
        retries.prepare(asked, was_read=was_read)
        yield from _singly(built, epoch, in_epoch, number, retries)
        return


def _singly(
    built: BuiltRun, epoch: int, first: int, number: int, retries: Retries
) -> Iterator[StepDone]:
    for in_epoch, samples, loss, is_taken in epoch_of(built, epoch, first, number, retries):
        number += 1
        ends = in_epoch == built.source.last
        yield StepDone(
            number, epoch + 1, in_epoch, loss, samples, is_taken, ends, built, built.step.items
        )


def _follow(built: BuiltRun, steps: int) -> None:
    """Do what follows a step, once for each."""
    works = built.step.target.after_step
    for _ in range(steps if works else 0):
        for work in works:
            work()
