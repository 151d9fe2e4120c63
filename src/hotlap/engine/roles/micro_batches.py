"""Roles `fit` and `pace` of a recipe: does a micro-batch fit into memory, and how fast is it?"""

import gc
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NoReturn

from hotlap.device.accelerator import device_of
from hotlap.engine.build import BuiltRun
from hotlap.engine.checks.splitting import why_not_smaller
from hotlap.engine.evaluate import evaluate
from hotlap.engine.memory.limit import (
    Limit,
    asked_for,
    enforce,
    limit_of,
    limit_of_turns,
    ran_out,
)
from hotlap.engine.roles.trial import Trial, leave
from hotlap.engine.state.position import Position
from hotlap.engine.steps import StepDone, steps_of
from hotlap.errors import RunError
from hotlap.plan import Plan
from hotlap.usercode import files_to_report

_STEPS = 3
"""The first one makes the optimizer's state, the next ones hold it beside all else."""


def fit(trial: Trial) -> NoReturn:
    """Take a few steps under a limit of memory, then evaluate a batch, and report if that fitted.

    Options: `size`, samples of a micro-batch, None for the whole batch, 0 for the task's own;
    `memory`, bytes, None for all that the device has.
    """
    asked = trial.config.options["size"]
    size = trial.task.logical_batch if asked is None else asked or trial.task.most_samples
    limit = limit_of(_hardware(trial), trial.config.options["memory"])
    done = _Attempt(limit)
    with enforce(limit):
        try:
            done.run(trial, size)
        except (RuntimeError, MemoryError, OSError, RunError) as error:
            if not ran_out(error):
                raise
            done.why = f"{done.where} ran out of memory{asked_for(error)}"
    # What failed is given back first: a report needs some memory, too.
    gc.collect()
    peak = limit.peak_bytes
    if not done.why and peak > limit.bytes:
        done.why = f"it held {peak / 2**20:.1f} MiB"
    trial.report(
        None,
        steps=done.steps,
        size=size,
        batch=trial.task.logical_batch,
        own=trial.task.most_samples,
        limit_bytes=limit.bytes,
        base_bytes=done.base_bytes,
        held_bytes=done.held_bytes,
        peak_bytes=peak,
        why=done.why,
        why_not_split=done.why_not_split,
        device=limit.hardware.name,
        files=files_to_report(),
    )
    raise AssertionError("a report ends the process")


@dataclass
class _Attempt:
    """A few steps, and how far they came."""

    limit: Limit
    where: str = "making the model"
    why: str = ""
    base_bytes: int = 0
    """Held before the first step."""
    held_bytes: int = 0
    """Held before the model is made, if that is too much already."""
    why_not_split: str | None = None
    steps: int = _STEPS

    def run(self, trial: Trial, size: int) -> None:
        held = self.limit.held_bytes
        if held > self.limit.bytes:
            self.held_bytes = held
            self.why = f"{held / 2**20:.1f} MiB are held before the model is made"
            return
        built = _build(trial, size)
        self.why_not_split = why_not_smaller(built.task, built.model, built.step.target)
        self.base_bytes = self.limit.held_bytes
        self.where = "a step"
        # A graph that is captured holds memory of its own.
        self.steps = max(_STEPS, _steps_to_capture(built) + 1)
        for step in steps_of(built):
            if step.number == self.steps:
                break
        if built.held_out is not None:
            # As before the first step of a run, when there is no optimizer state yet.
            self.where = "evaluating a batch"
            evaluate(built, batches=1)


def pace(trial: Trial) -> NoReturn:
    """Take turns of steps in micro-batches of the sizes that it is told, and report their times.

    All in one process, which differs from itself less than processes from each other. Options:
    `size`, the largest one; `memory`, bytes.
    """
    options, channel = trial.config.options, trial.channel
    limit = limit_of_turns(_hardware(trial), options["memory"])
    with enforce(limit):
        turns = _Turns(_build(trial, options["size"]))
        channel.send("ready")
        while (message := channel.receive()) is not None and message["kind"] == "turn":
            channel.send("turn", **_turn(turns, message["size"], message["steps"]))
    leave()


def _turn(turns: "_Turns", size: int, steps: int) -> dict[str, Any]:
    try:
        return turns.take(size, steps)
    except (RuntimeError, MemoryError, OSError, RunError) as error:
        if not ran_out(error):
            raise
    gc.collect()
    return {"seconds": None, "samples": 0, "steps": 0}


class _Turns:
    """One run, the micro-batches of which change from turn to turn."""

    def __init__(self, built: BuiltRun) -> None:
        self._built, self._at = built, Position()
        self._size = 0

    def take(self, size: int, steps: int) -> dict[str, Any]:
        """Take one step that does not count, and then so many.

        Of a plan that captures its steps as many do not count as it takes to capture this size.
        """
        built, uncounted = self._built, 1
        built.source.micro = size
        if size != self._size:
            built.step.executor.forget()
            uncounted = max(1, _steps_to_capture(built))
        self._size = size
        built.hardware.release_memory()
        number, samples, began = 0, 0, 0.0
        with closing(self._endless()) as taken:
            for step in taken:
                if number == uncounted - 1:
                    # The proof of an optimizer's implementation is not part of a step's time.
                    built.step.update.recorder = None
                    built.hardware.synchronize()
                    began = time.perf_counter()
                elif number >= uncounted:
                    samples += step.samples
                self._at = step.after
                number += 1
                if number >= uncounted + steps:
                    break
        built.hardware.synchronize()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "samples": samples, "steps": steps}

    def _endless(self) -> Generator[StepDone, None, None]:
        while True:
            yield from steps_of(self._built, self._at)
            # Gone through again, at the rate that its schedule ended with.
            self._at = Position()
            self._built.stop_schedule()


def _steps_to_capture(built: BuiltRun) -> int:
    """Return the steps until one is replayed, 0 of a plan that captures none."""
    wish = built.step.target.graph
    return 0 if wish is None else wish.warm_up + 1


def _build(trial: Trial, size: int) -> BuiltRun:
    return trial.build(trial.task, split_plan(Plan(trial.config.plan), size, trial))


def split_plan(plan: Plan, size: int, trial: Trial) -> Plan:
    """Return the plan with micro-batches of that size."""
    if size == trial.task.logical_batch == trial.task.most_samples:
        return plan.without("micro_batch")
    return plan.with_technique("micro_batch", size=size)


def _hardware(trial: Trial) -> Any:
    return device_of(trial.config.options.get("device"))
