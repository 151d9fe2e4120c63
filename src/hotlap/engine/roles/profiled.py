"""Role `profile` of a recipe: torch's profiler over some of its steps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from hotlap.engine.roles.trial import Trial
from hotlap.engine.run import steps_of
from hotlap.task import Task
from hotlap.trace.profiler import StepProfiler


def profile(trial: Trial) -> None:
    """Profile some steps, and end.

    Options: `kinds`, what is recorded; `file`, where the trace is written.
    """
    options = trial.config.options
    profiler, taken = StepProfiler(options["kinds"]), 0
    built = trial.build(replace(trial.task, loss=_marked(trial.task, profiler)))
    profiler.watch(built.model)
    built.optimizer.register_step_pre_hook(lambda *_: profiler.enter_phase("optimizer"))
    for step in steps_of(built):
        taken = step.number
        if profiler.step_ends():
            break
        # Until the next forward the engine reads a batch.
        profiler.enter_phase("data")
    trial.report(built, steps=taken, **profiler.report(Path(options["file"])))


def _marked(task: Task, profiler: StepProfiler) -> Callable[[Any, Any], Any]:
    def loss(model: Any, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            return task.loss(model, batch)
        profiler.enter_phase("forward")
        value = task.loss(model, batch)
        # The engine goes backward as soon as it has the loss.
        profiler.enter_phase("backward")
        return value

    return loss
