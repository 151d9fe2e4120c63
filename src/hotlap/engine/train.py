"""`hotlap.train`: the loop written out, with evaluation, saving and a report."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from hotlap.checkpoint.read import Checkpoint
from hotlap.device import Device
from hotlap.engine.build import Built, build
from hotlap.engine.decided import Late
from hotlap.engine.evaluate import evaluate, wide
from hotlap.engine.exporting import weights_of
from hotlap.engine.run import StepDone, explained, steps_of, waits_for_measure
from hotlap.engine.saving import Every, Saver, check_keep, find, run_of
from hotlap.engine.state import Position, capture, load_weights, restore
from hotlap.engine.warm import Warmed
from hotlap.errors import RunError, UsageError
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN

log = logging.getLogger("hotlap")

_SCALES = 40
"""Steps after which a scaler has halved its scale down to nothing."""


@dataclass(frozen=True)
class EpochDone:
    """One epoch, or what the run had of its last one."""

    epoch: int
    steps: int
    seconds: float
    """Training alone."""
    samples_per_s: float
    loss: float
    """Mean over the items of the steps that were taken, what the loss counts or else samples; NaN
    if none was."""
    held_out: Mapping[str, float]
    """The loss and the task's metrics on the held-out samples, empty without these."""
    left_s: float
    """Training that is still to come, at this epoch's speed; for a stream that does not say how
    long it is, with epochs as long as this one."""
    peak_memory_bytes: int
    """Most that was held at once, since the process began."""
    skipped_steps: int = 0
    """Updates of the whole run so far that were left out."""
    peak_host_memory_bytes: int = 0
    """The same on the host; equal where the model trains there."""
    padding: float | None = None
    """Share of the epoch's tokens that are padding, where the task has `lengths`."""


@dataclass(frozen=True)
class Trained:
    """What a training gave."""

    model: Any
    """In evaluation mode; its parameters are those that were trained, in float32."""
    epochs: tuple[EpochDone, ...]
    steps: int
    skipped_steps: int
    seconds: float
    samples_per_s: float
    """Steady: without the first epoch, which may read what later ones have in memory. NaN if
    nothing was left to train."""
    plan: Plan
    techniques: tuple[Mapping[str, str], ...]
    peak_memory_bytes: int
    run_dir: str | None = None
    warmed: tuple[Warmed, ...] = ()
    """The largest batches, tried before the first step where the task has `lengths`."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """The loss and the task's metrics on the held-out samples at the end, empty without these."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON that `hotlap train --json` prints."""
        return {
            "steps": self.steps,
            "skipped_steps": self.skipped_steps,
            "seconds": self.seconds,
            "samples_per_s": self.samples_per_s,
            "final": {
                "loss": self.epochs[-1].loss if self.epochs else None,
                "metrics": dict(self.held_out),
            },
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "plan": self.plan.techniques,
            "plan_hash": self.plan.hash,
            "techniques": [dict(row) for row in self.techniques],
            "peak_memory_bytes": self.peak_memory_bytes,
            "run_dir": self.run_dir,
            "warmed": [asdict(batch) for batch in self.warmed],
        }


def train(
    task: Task,
    plan: Plan | None = None,
    *,
    device: str | None = None,
    run_dir: str | Path | None = None,
    resume: str | None = None,
    weights: str | Path | None = None,
    save_every: str | None = None,
    keep: int = 2,
    techniques: tuple[str, ...] = (),
    progress: Callable[[EpochDone], None] = lambda _: None,
    notice: Callable[[str], None] = log.info,
) -> Trained:
    """Train to the end, evaluate after every epoch, and save as often as was asked for.

    Args:
        task: what is learned.
        plan: how it is executed; exact techniques only if None.
        device: as torch names it; the first accelerator if None, else the CPU.
        run_dir: the run's folder, for its checkpoints. If None that of the run that is resumed;
            a run that begins is then not saved.
        resume: go on from this folder `step-...` or this run's folder; `auto`: from `run_dir`, or
            begin there if nothing was saved yet.
        weights: begin with these: a run's folder, a folder `step-...`, or a file that people have,
            see `hotlap.checkpoint.foreign`. The optimizer begins anew. With `resume="auto"` they
            are taken where nothing was saved yet.
        save_every: `500steps`, `2epochs`, `10m`; every epoch if None. The end of the run is saved
            in any case.
        keep: how many steps are kept, the newest ones.
        techniques: techniques from outside that the plan names, as `module:NAME`.
        progress: called after every epoch.
        notice: called with what the user should know before the first step, in words.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: something in the task is not what it says it is, the checkpoint is of another
            task, or the folder holds what this run's steps would be mixed with.
        MissingFile: there is nothing to resume from.
        StorageError: a checkpoint could not be written.
    """
    begin = time.monotonic()
    folder = Path(run_dir) if run_dir is not None else None
    every = Every.parse("1epoch" if save_every is None else save_every)
    check_keep(keep)
    if save_every is not None and folder is None and resume is None:
        raise UsageError(f"save_every={save_every!r} needs the run's folder. Give --run-dir.")
    if weights is not None and resume not in (None, "auto"):
        raise UsageError(
            f"resume={resume!r} and weights given. Allowed: one of the two; with `auto` the "
            "weights are taken where nothing was saved yet."
        )
    saved, passed = find(resume, folder) if resume is not None else (None, [])
    for why in passed:
        notice(f"passed over: {why}")
    if resume is not None and saved is None:
        notice(f"nothing was saved in '{folder}' yet: the run begins there")
    if folder is None and saved is not None:
        folder = run_of(saved.path)
    saver = Saver(folder, every, keep) if folder is not None else None
    chosen = EXACT_PLAN if plan is None else plan
    built = build(task, chosen, device=device, techniques=techniques)
    try:
        return _train(built, saved, weights, saver, progress, notice, begin)
    finally:
        built.end()


def _train(
    built: Built,
    saved: Checkpoint | None,
    weights: str | Path | None,
    saver: Saver | None,
    progress: Callable[[EpochDone], None],
    notice: Callable[[str], None],
    begin: float,
) -> Trained:
    task = built.task
    position = restore(built, saved) if saved is not None else Position()
    if weights is not None and saved is None:
        load_weights(built, weights_of(weights, built.model.state_dict(), notice))
    is_finished = saved is not None and _is_finished(task, position, saved.path)
    if saved is not None:
        end = ", the end of the run" if is_finished else ""
        notice(f"going on from '{saved.path}', step {position.step}{end}")
    # Last: nothing is written before everything that was given is known to be right.
    if saver is not None:
        # What cannot be saved is said now, not after an epoch.
        capture(built, position)
    if built.held_out is not None and not is_finished:
        _try_measures(built)
    if saver is not None:
        saver.prepare(saved)
    clock = EpochClock(built.hardware, saved.state["clock"] if saved is not None else None)
    epochs: list[EpochDone] = []
    total, done = task.total_steps, position.step
    for step in steps_of(built, position) if not is_finished else ():
        done = step.number
        clock.add(step)
        # Without a number of steps, the last epoch of a stream ends when the stream does.
        is_last = step.number == total or (
            total is None and step.ends_epoch and step.epoch == task.epochs
        )
        if step.ends_epoch or is_last:
            epochs.append(_end_epoch(built, step, clock, saver))
            progress(epochs[-1])
            _check_learning(built, step, epochs[-1])
            if step.ends_epoch:
                clock = EpochClock(built.hardware)
        if saver is not None and saver.is_due(
            step.after, ends_epoch=step.ends_epoch, is_last=is_last
        ):
            saver.save(built, step.after, clock.to_json())
    if epochs:
        held_out = epochs[-1].held_out
    else:
        held_out = evaluate(built) if built.held_out is not None else {}
        if saver is not None and not (saved is not None and saver.holds(saved)):
            saver.save(built, position, clock.to_json())
    return Trained(
        model=built.model.eval(),
        epochs=tuple(epochs),
        steps=done,
        skipped_steps=built.step.skipped,
        seconds=time.monotonic() - begin,
        samples_per_s=_steady(epochs),
        plan=built.plan,
        techniques=tuple(built.applied.proofs()) if epochs else (),
        peak_memory_bytes=built.hardware.peak_bytes(),
        run_dir=None if saver is None else str(saver.run_dir),
        warmed=built.warmed,
        held_out=held_out,
    )


def _is_finished(task: Task, position: Position, where: Path) -> bool:
    """True if nothing is left to train; raise if the run has gone beyond the task."""
    if task.total_steps is None:
        done, total, unit = position.epoch, task.epochs or 0, "epochs"
    else:
        done, total, unit = position.step, task.total_steps, "steps"
    if done > total:
        raise UsageError(
            f"{where} has done {done} {unit}, the task has {total}. Allowed: a longer task."
        )
    return done == total


def _check_learning(built: Built, step: StepDone, epoch: EpochDone) -> None:
    """Raise once no update of the whole run was taken; a scaler may need some to find its scale."""
    may_scale = built.step.target.scaler is not None and step.number <= _SCALES
    if math.isnan(epoch.loss) and epoch.skipped_steps == step.number and not may_scale:
        raise RunError(
            f"none of {step.number} updates was taken: the loss, or the norm of the gradients, was "
            "not finite in any of them. Allowed: a loss that is finite, its count not 0 if it is "
            "(sum, count); look at the weights that the run began with, the data, and the "
            "learning rate."
        )


def _steps_left(task: Task, step: StepDone, in_this_epoch: int) -> int:
    total = task.total_steps
    if total is not None:
        return total - step.number
    return ((task.epochs or 0) - step.epoch) * in_this_epoch


def _try_measures(built: Built) -> None:
    """Measure one held-out batch: a mistake shows before the first step, not after an epoch."""
    try:
        evaluate(built, batches=1)
    except (IndexError, RuntimeError) as error:
        told = explained(error)
        if told is error:
            raise
        raise told from error


def _end_epoch(built: Built, step: StepDone, clock: "EpochClock", saver: Saver | None) -> EpochDone:
    seconds, loss = clock.read()
    try:
        held_out = evaluate(built) if built.held_out is not None else {}
    except Exception as error:
        # What was trained is not lost with it; a schedule that waits for the measure goes on
        # from an earlier step.
        if saver is not None and not waits_for_measure(built):
            where = saver.save(built, step.after, EpochClock(built.hardware).to_json())
            error.add_note(f"hotlap: evaluation raised this; what was trained is in '{where}'")
        raise
    if waits_for_measure(built) and step.ends_epoch:
        built.scheduler.step(_followed(held_out, loss))
    return EpochDone(
        epoch=step.epoch,
        steps=clock.steps,
        seconds=seconds,
        samples_per_s=clock.timed / seconds,
        loss=loss,
        held_out=held_out,
        left_s=_steps_left(built.task, step, clock.steps) * seconds / clock.timed_steps,
        peak_memory_bytes=built.hardware.peak_bytes(),
        skipped_steps=built.step.skipped,
        peak_host_memory_bytes=built.hardware.host_peak_bytes(),
        padding=built.source.padding,
    )


def _followed(held_out: Mapping[str, float], loss: float) -> float:
    """Return what a schedule that waits for a measure is given."""
    if held_out and "loss" not in held_out:
        raise UsageError(
            f"the schedule follows the held-out loss, and evaluate() gave {sorted(held_out)}. "
            "Allowed: a `loss` among what evaluate() gives, or another schedule."
        )
    return held_out.get("loss", loss)


class EpochClock:
    """Time and loss of one epoch; on a device of its own the loss is summed there, and read once.

    Args:
        device: that the steps run on.
        begun: what `to_json` gave, if the epoch was begun before.
    """

    def __init__(self, device: Device, begun: Mapping[str, Any] | None = None) -> None:
        self.device = device
        self.steps = begun["steps"] if begun else 0
        self._items: Any = begun["items"] if begun else 0
        """Of the steps that were taken."""
        self.timed = self.timed_steps = 0
        """Samples, and steps, since this process took the epoch up."""
        begun_loss = begun["loss"] if begun else 0.0
        # Nobody waits for a host's own number, and adding tensors up takes six times as long.
        self._loss: Any = begun_loss
        if device.is_apart:
            self._loss = wide(torch.zeros((), device=device.name)) + begun_loss
        self._begin = time.perf_counter()

    def add(self, step: StepDone) -> None:
        """Count a step in."""
        self.steps += 1
        self.timed += step.samples
        self.timed_steps += 1
        items = step.samples if step.items is None else step.items
        if not self.device.is_apart:
            if step.is_taken:
                self._loss += float(step.loss) * float(items)
                self._items += float(items)
            return
        items = wide(items)
        if isinstance(step.is_taken, Late):
            self._loss += step.is_taken.masked(step.loss) * items
            self._items += step.is_taken.masked(torch.ones_like(step.loss)) * items
        elif step.is_taken:
            self._loss += step.loss * items
            self._items += items

    def read(self) -> tuple[float, float]:
        """Return seconds, and the mean loss over the items whose updates were taken, else NaN."""
        items = float(self._items)
        if items < 0:
            raise RunError(
                f"the loss returned counts that add up to {items:g}. Allowed: (sum, count) with a "
                "count from 0: a negative one turns the gradient round."
            )
        loss = float(self._loss) / items if items else math.nan
        self.device.synchronize()
        return time.perf_counter() - self._begin, loss

    def to_json(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "items": float(self._items),
            "loss": float(self._loss),
        }


def _steady(epochs: list[EpochDone]) -> float:
    counted = epochs[1:] or epochs
    if not counted:
        return math.nan
    return sum(e.samples_per_s * e.seconds for e in counted) / sum(e.seconds for e in counted)
