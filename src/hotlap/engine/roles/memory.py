"""Role `memory` of a recipe: observes what the first steps allocate, and what holds it."""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluate import evaluate
from hotlap.engine.roles.trial import Trial
from hotlap.engine.steps import steps_of
from hotlap.task import Task
from hotlap.trace.memory_recorder import LEAST_STEPS, STEPS, MemoryRecorder
from hotlap.trace.memory_schema import SNAPSHOT, MemoryTrace
from hotlap.trial.autocast_gate import AutocastGate, AutocastTurns
from hotlap.usercode import is_users

_TOLD = 2
"""Steps whose time whoever waits is told."""
_NOT_OBSERVED = (
    "the first step was not observed: in it the engine also checks that the loss is a mean, "
    "because steps are split into micro-batches"
)


def memory(trial: Trial) -> None:
    """Record a `MemoryTrace` of the first steps that the engine takes under the trial's plan.

    Options: `folder`, where the trace is written; `seconds`, after which fewer steps do;
    `autocast`, see `hotlap.trial.autocast_gate`; `snapshot` is True if the history of a CUDA
    device's allocator is to be written there, too.
    """
    options = trial.config.options
    gate = AutocastGate()
    gate.install()
    AutocastTurns(gate, options.get("autocast", ""), 0)
    watched = _Watched(trial)
    watched.run(options["seconds"])
    if options.get("snapshot", False):
        watched.write_snapshot(Path(options["folder"]) / SNAPSHOT)
    trace = replace(watched.trace(), autocast=gate.format)
    trace.write(Path(options["folder"]))
    trial.report(watched.built, steps=trace.steps)


class _Watched:
    """A run whose memory is observed."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._task = trial, trial.task
        self._is_on = False
        self.built: BuiltRun = trial.build(replace(self._task, loss=self._wrap_loss()))
        self._recorder = MemoryRecorder(
            lambda: [self.built.optimizer],
            lambda: [self.built.model],
            lambda: named_objects(self._task, self.built.model, sys.argv[0]),
            keeps_history=trial.config.options.get("snapshot", False),
        )
        self._setup_s = 0.0
        is_split = self.built.source.micro < self._task.logical_batch
        self._checks = is_split and self._task.total_steps != 1
        """True until the engine has checked, in its first step, what it can split."""
        self.built.step.target.after_backward.append(self._recorder.backward_ends)
        optimizer = self.built.optimizer
        optimizer.register_step_pre_hook(lambda *_: self._recorder.enter_phase("optimizer"))
        optimizer.register_step_post_hook(lambda *_: self._recorder.enter_phase("other"))
        self._epoch = self.built.source.epoch
        self.built.source.epoch = self._follow_epoch  # pyright: ignore[reportAttributeAccessIssue]

    def _wrap_loss(self) -> Callable[[Any, Any], Any]:
        loss = self._task.loss

        def watched(model: Any, batch: Any) -> Any:
            if not (self._is_on and torch.is_grad_enabled()):
                return loss(model, batch)
            # No variable of the engine's loop outlives a step: none is looked at.
            self._recorder.forward_begins(None)
            value = loss(model, batch)
            self._recorder.backward_begins()
            return value

        return watched

    def _follow_epoch(self, *args: Any) -> Iterator[Any]:
        recorder = self._recorder
        if not self._setup_s:
            self._setup_s = time.monotonic() - self._trial.config.options["started"]
        if not self._checks:
            self._begin()
        recorder.enter_phase("data")
        for micros in self._epoch(*args):
            if self._is_on:
                recorder.batch_ends([batch for _, batch in micros])
            recorder.enter_phase("other")
            yield micros
            recorder.enter_phase("data")
        recorder.enter_phase("other")

    def _begin(self) -> None:
        self._is_on = True
        self._recorder.begin()

    def run(self, seconds: float) -> None:
        """Train as `hotlap train` does, until enough steps were taken."""
        began = last = time.monotonic()
        for step in steps_of(self.built):
            if self._checks:
                self._checks = False
                self._recorder.notes.append(_NOT_OBSERVED)
                self._begin()
                continue
            self._hide_kept_samples()
            self._recorder.step_ends(None)
            now = time.monotonic()
            if self._recorder.steps <= _TOLD:
                self._trial.channel.send("step_time", seconds=now - last)
            last = now
            is_late = now - began > seconds and self._recorder.steps >= LEAST_STEPS
            if self._recorder.steps >= STEPS or is_late:
                return
            if step.ends_epoch and self.built.held_out is not None:
                evaluate(self.built)

    def _hide_kept_samples(self) -> None:
        """Count the samples that a technique keeps for later epochs with what is not the steps'."""
        for _, _, target in self.built.applied.targets():
            kept = getattr(target, "notes", {}).get("resident")
            if kept is not None:
                self._recorder.ledger.mark(kept.held, "other")

    def write_snapshot(self, path: Path) -> None:
        """Write the allocator's history, which was recorded if the trial's options ask for it."""
        self._recorder.write_snapshot(path)

    def trace(self) -> MemoryTrace:
        """Return what was observed, and observe no more."""
        trace = self._recorder.trace(self.built.device, self._task.total_steps)
        return replace(trace, setup_s=self._setup_s)


def named_objects(task: Task, model: Any, recipe: str) -> Iterator[tuple[str, str, Any]]:
    """Give (name, file, object) of what the engine holds of a recipe, for the growth in it.

    Args:
        task: the recipe's.
        model: the one that is trained.
        recipe: file that names what has no file of the user's own.
    """
    yield "model", _file_of(model, recipe), model
    yield "data", _file_of(task.data, recipe), task.data
    for name in ("loss", "collate", "model", "optimizer"):
        yield from _held_by(name, getattr(task, name, None), recipe)


def _held_by(name: str, function: Any, recipe: str) -> Iterator[tuple[str, str, Any]]:
    """Give what a function of the recipe's has closed over, or is a method of."""
    while isinstance(function, partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield name, _file_of(owner, recipe), owner
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        if function is not None:
            yield name, _file_of(function, recipe), function
        return
    cells = getattr(function, "__closure__", None) or ()
    for variable, cell in zip(code.co_freevars, cells, strict=False):
        try:
            yield variable, code.co_filename, cell.cell_contents
        except ValueError:
            # Not assigned yet.
            continue


def _file_of(value: Any, recipe: str) -> str:
    """Return the file that defines the class of an object, the recipe if it is a library's."""
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    return file if isinstance(file, str) and is_users(file) else recipe
