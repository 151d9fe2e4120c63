"""A task, a plan and a device become a run that can take steps."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from hotlap.engine.scheduling import check_length
from hotlap.engine.step import Step
from hotlap.errors import UsageError
from hotlap.feed.source import Source
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import (
    FeedTarget,
    ModelTarget,
    OptimizerTarget,
    StepTarget,
    check,
)
from hotlap.techniques.applying import Applied, Switched

_EVALUATION_BATCH = 4


@dataclass
class Built:
    """Everything that a run consists of, before its first step."""

    task: Task
    plan: Plan
    device: str
    model: Any
    optimizer: Any
    scheduler: Any
    source: Source
    held_out: Source | None
    step: Step
    applied: Applied
    switched: Switched
    """What the plan has set for the whole process; `undo` puts it back."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Name of a parameter -> the tensor that is trained, where it is not the model's own."""
    hyperparameters: dict[str, str] = field(default_factory=dict)
    """The optimizer's, by group and name, before the first step."""
    operators: set[str] = field(default_factory=set)
    """Filled by the second step, see `OptimizerTarget`."""


def build(
    task: Task,
    plan: Plan,
    *,
    device: str | None = None,
    check_finite: bool = True,
    fill_ahead: bool = False,
) -> Built:
    """Make the run. Everything random follows from the task's seed.

    Args:
        task: what is learned.
        plan: how it is executed.
        device: as torch names it; the first accelerator if None, else the CPU.
        check_finite: see `Step`.
        fill_ahead: let the feed reach its steady state at once, for trials.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: model, optimizer or schedule are not what the task says.
    """
    check(plan)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    applied = Applied(plan)
    switched = applied.start(device.partition(":")[0])
    try:
        return _build(task, plan, device, applied, switched, check_finite, fill_ahead)
    except BaseException:
        switched.undo()
        raise


def _build(
    task: Task,
    plan: Plan,
    device: str,
    applied: Applied,
    switched: Switched,
    check_finite: bool,
    fill_ahead: bool,
) -> Built:
    seed_everything(task.seed)
    model = task.model()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model() gave {type(model).__name__}. Allowed: a torch.nn.Module.")
    model.to(device).train()
    applied.apply("model", ModelTarget(model, []))
    optimizer = _made("optimizer", task.optimizer, model, "step", "param_groups")
    # Before a schedule changes them.
    hyperparameters = _hyperparameters(optimizer)
    scheduler = None
    target = StepTarget(model, optimizer, device.partition(":")[0])
    applied.apply("step", target)
    target.after_update += switched.after_step
    optimizer = target.optimizer
    target.module = target.optimizer = None
    if task.schedule is not None:
        scheduler = _made("schedule", task.schedule, optimizer, "step", "state_dict")
        check_length(scheduler, task)
    acts_on = OptimizerTarget(optimizer)
    applied.apply("optimizer", acts_on)
    acts_on.optimizer = None
    held_out = task.held_out is not None
    source = _with_techniques(_training(task), applied, fill_ahead)
    _check_statistics(task, model, source.micro)
    step = Step(
        model,
        task.loss,
        optimizer,
        target=target,
        clip_norm=task.clip_norm,
        clip_value=task.clip_value,
        check_finite=check_finite,
    )
    return Built(
        task=task,
        plan=plan,
        device=device,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        source=source,
        held_out=_with_techniques(_held_out(task), applied, fill_ahead) if held_out else None,
        step=step,
        applied=applied,
        switched=switched,
        weights=target.weights,
        hyperparameters=hyperparameters,
        operators=acts_on.operators,
    )


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    import numpy

    numpy.random.seed(seed % 2**32)


def _check_statistics(task: Task, model: Any, micro: int) -> None:
    if micro >= task.logical_batch or task.splits_statistics:
        return
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            raise UsageError(
                f"a step of {task.logical_batch} samples in micro-batches of {micro}, with batch "
                f"norm ({name}): its statistics would be those of a part. Allowed: whole steps, "
                "another normalisation, or splits_statistics=True if that is meant."
            )


def _hyperparameters(optimizer: Any) -> dict[str, str]:
    return {
        f"group {number}, {key}": repr(value)
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key not in ("params", "foreach", "fused")
    }


def _made(what: str, make: Callable[[Any], Any], given: Any, *needed: str) -> Any:
    made = make(given)
    absent = [name for name in needed if not hasattr(made, name)]
    if absent:
        raise UsageError(
            f"{what}() gave {type(made).__name__}, which has no `{absent[0]}`. Allowed: what "
            f"torch.optim has of this kind."
        )
    return made


def _training(task: Task) -> Source:
    return Source(
        task.data,
        task.logical_batch,
        micro=task.batch_size,
        seed=task.seed,
        shuffle=task.shuffle,
        drop_last=task.drop_last,
        collate=task.collate,
    )


def _held_out(task: Task) -> Source:
    # Larger batches than in training: nothing is kept for a backward.
    size = task.batch_size * _EVALUATION_BATCH
    return Source(task.held_out, size, seed=task.seed, shuffle=False, collate=task.collate)


def _with_techniques(source: Source, applied: Applied, fill_ahead: bool) -> Source:
    target = FeedTarget(source, own_order=True, fill_ahead=fill_ahead, size=source.length)
    applied.apply("feed", target)
    target.loader = None
    source.wraps, source.notes = target.fetchers, target.notes
    return source
