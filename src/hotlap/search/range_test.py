"""Learning-rate range test: some steps at rates that rise from tiny to far too large.

As in Smith, "Cyclical Learning Rates for Training Neural Networks" (2017): the largest rate at
which the loss still falls is found in one short run, which is then undone.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from hotlap import rng
from hotlap.checkpoint.read import Checkpoint
from hotlap.checkpoint.shards import Piece, join
from hotlap.engine.build import BuiltRun, build
from hotlap.engine.retries import Retries
from hotlap.engine.state.content import capture, restore
from hotlap.engine.state.position import Position
from hotlap.engine.steps import steps_of
from hotlap.errors import UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN

LOWEST, HIGHEST, STEPS = 1e-6, 10.0, 100
_LEAST_STEPS = 20
_RATE = re.compile(r"(?:^|_)(?:lr|learning_?rate)$", re.IGNORECASE)
"""Ends the name of a learning rate: `base_lr` is one, `lr_decay` is not."""
_SMOOTHING = 0.9
"""Share of the past in the running mean of the loss."""
_DIVERGED = 4.0
"""A rise to this many times the scale of the losses above the least one ends the test."""
_FLAT = 0.1
"""Share of the steps, the first ones, in which rates are too small to change the loss."""
_NOISES = 2.0
"""Standard deviations of these losses that a fall must exceed."""
_RISE_NOISES = 10.0
"""Standard deviations of these losses that are part of their scale."""
_ROUNDING = 1e-6
"""Share of a loss below which a change of it is rounding, as float32 has it."""
_MORE = "more steps, or higher rates"
_MARGIN = 10.0
"""By which the proposed rate lies below the one with the least loss: there, training is about to
diverge."""


@dataclass(frozen=True)
class RangeTest:
    """What a range test found."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Training loss of the step at each rate."""
    rate: float | None
    """A rate to begin with, of the optimizer's first group that has one; None if there is no
    answer."""
    largest: float | None
    """The rate with the least loss, near which training diverges."""
    reason: str
    """Why there is no answer, or how it was found."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        space = None if self.rate is None else [self.rate / _MARGIN, self.largest]
        return {
            "rate": self.rate,
            "largest": self.largest,
            "range": space,
            "reason": self.reason,
            "rates": list(self.rates),
            "losses": list(self.losses),
        }


def find_learning_rate(
    task: Task,
    plan: Plan | None = None,
    *,
    device: str | None = None,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    steps: int = STEPS,
) -> RangeTest:
    """Take some steps at rising learning rates, and undo them.

    Weights, buffers, the optimizer's state and all RNG states are put back: a training that follows
    is, bit for bit, the one that would have been without the test. Schedules are not stepped, and
    what a schedule begins with, as a warm-up from 0, does not count. If the optimizer has several
    groups, their rates keep their ratios; a group whose rate is 0 keeps it.

    Args:
        task: what is learned.
        plan: how it is executed; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU.
        lowest: first rate, of the optimizer's first group that has one.
        highest: last rate, if the loss does not diverge before.
        steps: at most; no more than the task has.

    Raises:
        UsageError: the rates are no range, or there are too few steps.
    """
    if not 0 < lowest < highest < math.inf:
        raise UsageError(
            f"lowest={lowest!r} and highest={highest!r} of hotlap.find_learning_rate() are not a "
            "range of learning rates. Expected: finite numbers, 0 < lowest < highest, such as "
            f"lowest={LOWEST:g}, highest={HIGHEST:g}."
        )
    steps = steps if task.total_steps is None else min(steps, task.total_steps)
    if steps < _LEAST_STEPS:
        longer = "`steps` of hotlap.find_learning_rate()"
        if steps == task.total_steps:
            longer = f"`epochs` or `steps` of the hotlap.Task, which ends after {steps} steps"
        raise UsageError(
            f"a learning-rate range test of {steps} steps is too short. Expected: {_LEAST_STEPS} "
            f"steps or more. Increase {longer}."
        )
    before = rng.rng_states()
    built = build(task, EXACT_PLAN if plan is None else plan, device=device)
    try:
        saved = _copy(built)
        try:
            rates, losses = _rise(built, lowest, highest, steps)
        finally:
            restore(built, saved)
    finally:
        built.end()
        rng.set_rng_states(before)
    return judge(rates, losses)


def _copy(built: BuiltRun) -> Checkpoint:
    """Return the state of a run, which what it trains does not change."""
    tensors, state = capture(built, Position())
    copied = {
        part: {
            name: (join([each]) if isinstance(each, Piece) else each).detach().clone()
            for name, each in named.items()
        }
        for part, named in tensors.items()
    }
    return Checkpoint(Path("before the range test"), 0, copied, state)


def _rise(
    built: BuiltRun, lowest: float, highest: float, steps: int
) -> tuple[list[float], list[float]]:
    """Take steps at rising rates until the loss diverges; return rates and losses."""
    groups = built.optimizer.param_groups
    if any("lr" not in group for group in groups):
        raise UsageError(
            f"the optimizer {type(built.optimizer).__name__} has a parameter group without `lr`, "
            "so there is no learning rate to test. Use an optimizer with `lr` in all param_groups, "
            "such as torch.optim.SGD, as `optimizer` of the hotlap.Task."
        )
    shares = _shares(groups)
    scheduler, built.scheduler = built.scheduler, None
    taken = steps_of(built, retries=Retries(built, lambda _: None))
    rates: list[float] = []
    losses: list[float] = []
    try:
        for number in range(steps):
            rate = lowest * (highest / lowest) ** (number / (steps - 1))
            for group, share in zip(groups, shares, strict=True):
                _set_rate(group, rate * share)
            step = next(taken, None)
            if step is None:
                break
            rates.append(rate)
            losses.append(float(step.loss))
            if not math.isfinite(losses[-1]) or _has_diverged(losses):
                break
    finally:
        taken.close()  # pyright: ignore[reportAttributeAccessIssue]
        built.scheduler = scheduler
    return rates, losses


def _shares(groups: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the rate of each group by that of the first one that has one.

    A schedule has already set `lr` to what its first step has, which is 0 at the beginning of a
    warm-up, and keeps the optimizer's own rate as `initial_lr`. Where all are 0 it is set by
    something else, which says nothing of the groups: all have the same then.
    """
    rates = [float(group.get("initial_lr", group["lr"])) for group in groups]
    first = next((rate for rate in rates if rate), None)
    return [1.0 if first is None else rate / first for rate in rates]


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


def judge(rates: Sequence[float], losses: Sequence[float]) -> RangeTest:
    """Return what the losses at rising rates say.

    Args:
        rates: rising.
        losses: of the step at each of them; the last may be infinite or NaN.
    """

    def found(rate: float | None, largest: float | None, reason: str) -> RangeTest:
        return RangeTest(tuple(rates), tuple(losses), rate, largest, reason)

    smooth = _smoothed([loss for loss in losses if math.isfinite(loss)])
    flat = _flat(losses)
    ended = _ended(rates, losses)
    if len(smooth) < _LEAST_STEPS // 2 or not all(map(math.isfinite, flat)):
        return found(None, None, _too_few(len(smooth), ended))
    if max(smooth) - min(smooth) <= _ROUNDING * max(map(abs, smooth)):
        return found(
            None,
            None,
            f"the loss was {losses[0]:.6g} at every rate{ended and f' before it {ended}'}: check "
            "that it is computed from the output of the model, and that nothing between them is "
            "detached or 0",
        )
    noise, start = stdev(flat), fmean(flat)
    # Beyond the first steps: what is least in them is so by chance.
    least = min(range(len(flat), len(smooth)), key=lambda n: smooth[n])
    rounding = _ROUNDING * max(abs(start), abs(smooth[least]))
    if start - smooth[least] <= max(_NOISES * noise, rounding):
        return found(
            None,
            None,
            f"the loss fell by {max(0.0, start - smooth[least]):.3g} at most"
            f"{ended and f' before it {ended}'}, and at tiny rates it varies by {noise:.3g} from "
            f"step to step: use larger batches, {'or more steps' if ended else _MORE}",
        )
    if least >= len(smooth) - 2 and not ended:
        return found(
            None,
            None,
            f"the loss still fell at the highest rate, {rates[-1]:.1e}: use higher rates",
        )
    largest = _rounded(rates[least])
    beyond = "rose" if least < len(smooth) - 1 else "was not finite"
    return found(
        _rounded(largest / _MARGIN),
        largest,
        f"the loss was least at {largest:g}, and {beyond} beyond; a tenth of that is a rate to "
        "begin with",
    )


def _ended(rates: Sequence[float], losses: Sequence[float]) -> str:
    """Return what the loss did that ended a test before its highest rate; "" if it ended so."""
    # The last loss was computed before the step at its own rate.
    steps = max(0, len(losses) - 1)
    after = f"after {steps} steps, at a rate of {rates[max(0, steps - 1)]:.1e}" if rates else ""
    if losses and not math.isfinite(losses[-1]):
        return f"was not finite {after}"
    return f"rose to {losses[-1]:.3g} {after}" if _has_diverged(losses) else ""


def _too_few(steps: int, ended: str) -> str:
    """Return why there is no answer after a few steps."""
    if not ended:
        return f"the task ended after {steps} steps: give it more data, or more epochs"
    return f"the loss {ended}: begin with smaller rates, or check the loss"


def _flat(losses: Sequence[float]) -> list[float]:
    """Return the first losses, which are those of rates that are too small to change them."""
    return list(losses[: max(5, int(_FLAT * len(losses)))])


def _has_diverged(losses: Sequence[float]) -> bool:
    """Return True if finite losses rose so far that what follows says nothing.

    A loss may be negative, or near 0 by an offset: how far is far follows from how much it varied
    and fell, too. An offset that is large only means that the test ends later.
    """
    flat = _flat(losses)
    if len(losses) <= len(flat):
        return False
    smooth = _smoothed(losses)
    start, least = fmean(flat), min(smooth)
    scale = max(abs(start), start - least, _RISE_NOISES * stdev(flat))
    return smooth[-1] - least > _DIVERGED * scale


def _smoothed(losses: Sequence[float]) -> list[float]:
    """Return running means, without the bias of their beginning."""
    mean, smooth = 0.0, []
    for number, loss in enumerate(losses, 1):
        mean = _SMOOTHING * mean + (1 - _SMOOTHING) * loss
        smooth.append(mean / (1 - _SMOOTHING**number))
    return smooth


def _rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


def name_of_rate(values: Mapping[str, Any]) -> str | None:
    """Return which parameter of a recipe is its learning rate; None if names do not tell.

    Args:
        values: of the recipe's parameters.
    """
    if "lr" in values:
        return "lr"
    named = [
        name
        for name, value in values.items()
        if _RATE.search(name)
        and isinstance(value, int | float | None)
        and not isinstance(value, bool)
    ]
    return named[0] if len(named) == 1 else None


def space_text(found: Mapping[str, Any], name: str | None) -> str:
    """Return the `--space` around what was found.

    Args:
        found: a range test as plain data.
        name: of the parameter; None if it is not known.
    """
    low, high = found["range"]
    space = f"--space '{name or 'NAME'}=loguniform({low:g},{high:g})'"
    why = "where NAME is the parameter of task() that sets the learning rate"
    return space if name else f"{space}, {why}"
