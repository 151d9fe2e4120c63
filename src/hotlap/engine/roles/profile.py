"""Role `profile` of a recipe: records some of the engine's steps with torch.profiler."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hotlap.engine.build import BuiltRun
from hotlap.engine.evaluate import evaluate
from hotlap.engine.roles.trial import Trial
from hotlap.engine.steps import steps_of
from hotlap.trace.clock import BACKWARD, DATA, FORWARD, OPTIMIZER, OTHER
from hotlap.trace.profiler_window import ProfilerWindow
from hotlap.trace.regions import PhaseRegions

_TOLD = 2
"""Steps whose time whoever waits is told."""


def profile(trial: Trial) -> None:
    """Record a window of the steps that the engine takes under the trial's plan.

    Options: `folder`, where the trace is written; `kinds`, what is recorded; `seconds`, for which
    there is time.
    """
    options = trial.config.options
    folder, seconds = Path(options["folder"]), options["seconds"]
    built: BuiltRun | None = None

    def models() -> list[torch.nn.Module]:
        return [] if built is None else [built.model]

    window = ProfilerWindow(options["kinds"], folder, seconds, models)
    loss = _marked_loss(trial.task.loss, window.phases)
    built = trial.build(replace(trial.task, loss=loss))
    _mark_step(built, window.phases)
    steps, ended, last = 0, "script", time.monotonic()
    for steps, step in enumerate(steps_of(built), 1):
        now = time.monotonic()
        if steps <= _TOLD:
            trial.channel.send("step_time", seconds=now - last)
        last = now
        if window.step_done():
            ended = "limit"
            break
        if step.ends_epoch and built.held_out is not None:
            evaluate(built)
    window.close()
    trial.report(built, steps=steps, ended=ended)


def _marked_loss(
    loss: Callable[[Any, Any], Any], phases: PhaseRegions
) -> Callable[[Any, Any], Any]:
    """Return the task's loss; the engine goes backward as soon as it has it."""

    def marked(model: Any, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            return loss(model, batch)
        phases.enter(FORWARD)
        value = loss(model, batch)
        phases.enter(BACKWARD)
        return value

    return marked


def _mark_step(built: BuiltRun, phases: PhaseRegions) -> None:
    """Follow the step that the engine takes, from the wait for its batch on."""
    optimizer, original = built.optimizer, built.source.epoch
    built.step.target.after_backward.append(lambda: phases.enter(OTHER))
    optimizer.register_step_pre_hook(lambda *_: phases.enter(OPTIMIZER))
    optimizer.register_step_post_hook(lambda *_: phases.enter(OTHER))

    def epoch(*args: Any) -> Iterator[Any]:
        phases.enter(DATA)
        for given in original(*args):
            phases.enter(OTHER)
            yield given
            phases.enter(DATA)
        phases.enter(OTHER)

    built.source.epoch = epoch  # pyright: ignore[reportAttributeAccessIssue]
