"""`build`: makes model, optimizer, sources and step of a run from a task, a plan and a device."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from hotlap.device.accelerator import Device, device_of
from hotlap.distributed.reduce import Reduce
from hotlap.engine.checks.same_on_ranks import check_batch, check_model, check_task
from hotlap.engine.checks.schedule_length import values_of
from hotlap.engine.checks.sharded_optimizer import check_sharding
from hotlap.engine.checks.splitting import check_gradients, check_statistics
from hotlap.engine.largest_batch import WarmUpBatch, warm_up
from hotlap.engine.sources import (
    first_batch,
    held_out_source,
    tables_of,
    training_source,
    with_techniques,
)
from hotlap.engine.step.choosing import step_of
from hotlap.engine.step.step import Step
from hotlap.engine.task_parts import (
    check_closure,
    check_parameters,
    hyperparameters_of,
    made_by,
    model_of,
    scheduler_of,
)
from hotlap.feed.sources.lengths import LengthSource
from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.plan import Plan
from hotlap.task import Task
from hotlap.techniques import ModelTarget, OptimizerTarget, StepTarget, check, registry
from hotlap.techniques.applying import Applied, Switched


@dataclass
class BuiltRun:
    """Everything that a run consists of, before its first step."""

    task: Task
    plan: Plan
    hardware: Device
    model: Any
    optimizer: Any
    scheduler: Any
    source: Source | Stream
    held_out: Source | Stream | None
    step: Step
    applied: Applied
    switched: Switched
    """What the plan has set for the whole process; `undo` puts it back."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Name of a parameter -> the tensor that is trained, where it is not the model's own."""
    hyperparameters: dict[str, str] = field(default_factory=dict)
    """The optimizer's, by group and name, before the first step."""
    schedule_values: dict[str, Any] = field(default_factory=dict)
    """The schedule's, by name, before the first step, as a checkpoint keeps them."""
    buffers: dict[str, Any] = field(default_factory=dict)
    """Path of a buffer -> the tensor that it was before the first step, and that one's version."""
    ended: list[Callable[[], Any]] = field(default_factory=list)
    """What hands the model back as it was made, with the weights that were trained."""
    operators: set[str] = field(default_factory=set)
    """Filled by the second step, see `OptimizerTarget`."""
    warmed: tuple[WarmUpBatch, ...] = ()
    """Batches that were tried before the first step."""
    reduce: Reduce = field(default_factory=Reduce)
    """The ranks that train together."""

    @property
    def sharding(self) -> Any:
        """How the ranks share parameters, or what belongs to these; None if each holds all."""
        return self.step.target.sharding

    @property
    def device(self) -> str:
        """The device, as torch names it."""
        return self.hardware.name

    def stop_schedule(self) -> None:
        """Train on at the rates of now, as where a task is gone through again."""
        self.step.hold_rates()
        self.scheduler = None

    def end(self) -> None:
        """Hand the model and the process back; a second call does nothing."""
        _end(self.ended, self.switched)


def _end(ended: list[Callable[[], Any]], switched: Switched) -> None:
    try:
        while ended:
            ended.pop(0)()
    finally:
        switched.undo()


def build(
    task: Task,
    plan: Plan,
    *,
    device: str | None = None,
    check_finite: bool = True,
    fill_ahead: bool = False,
    techniques: tuple[str, ...] = (),
    reduce: Reduce | None = None,
    follows_schedule: bool = True,
) -> BuiltRun:
    """Make the run. Everything random follows from the task's seed.

    Args:
        task: what is learned.
        plan: how it is executed.
        device: as torch names it; the first accelerator if None, else the CPU.
        check_finite: see `Step`.
        fill_ahead: let the feed reach its steady state at once, for trials.
        techniques: techniques from outside, as `module:NAME`.
        reduce: the ranks that train together; this process alone if None.
        follows_schedule: a schedule that steps with the optimizer may follow on the device. Its
            state, and the groups' rates, are then behind, until `Step.settle`.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: model, optimizer or schedule are not what the task says.
    """
    check(plan, registry(techniques))
    hardware = device_of(device)
    reduce = reduce or Reduce()
    check_task(task, plan, reduce)
    check_batch(task, reduce)
    applied = Applied(plan, techniques, on_ranks=reduce.world > 1)
    switched, ended = applied.start(hardware.kind), []
    try:
        around = (check_finite, follows_schedule, fill_ahead, reduce)
        return _build(task, plan, hardware, applied, switched, ended, *around)
    except BaseException:
        _end(ended, switched)
        raise


def _build(
    task: Task,
    plan: Plan,
    hardware: Device,
    applied: Applied,
    switched: Switched,
    ended: list[Callable[[], Any]],
    check_finite: bool,
    follows_schedule: bool,
    fill_ahead: bool,
    reduce: Reduce,
) -> BuiltRun:
    seed_everything(task.seed)
    model = _make_model(task, hardware)
    check_model(model, reduce)
    on_model = ModelTarget(model, [], ended=ended, reduce=reduce)
    applied.apply("model", on_model)
    on_model.module = None
    optimizer = made_by("optimizer", task.optimizer, model, "step", "param_groups")
    check_closure(optimizer)
    check_parameters(model, optimizer)
    # Before a schedule changes them.
    hyperparameters = hyperparameters_of(model, optimizer)
    target = _step_target(model, optimizer, hardware, on_model)
    check_sharding(optimizer, target.sharding)
    applied.apply("step", target)
    target.after_step += switched.after_step
    optimizer = target.optimizer
    target.module = target.optimizer = None
    scheduler = scheduler_of(task, optimizer)
    acts_on = OptimizerTarget(optimizer, taken_by=target.optimizer_taken_by)
    applied.apply("optimizer", acts_on)
    acts_on.optimizer = None
    around = (applied, hardware, fill_ahead, tables_of(plan, reduce))
    source = with_techniques(training_source(task, reduce), *around)
    check_statistics(task, model, source.micro, reduce.world)
    check_gradients(task, target, source.micro)
    step = step_of(
        task,
        acts_on.implementation,
        hardware,
        (model, _wrap_loss(task, target), optimizer),
        scheduler if task.schedule_per == "step" else None,
        target,
        check_finite,
        follows_schedule,
        reduce,
        partial(first_batch, source, hardware),
    )
    return BuiltRun(
        task=task,
        plan=plan,
        hardware=hardware,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        source=source,
        held_out=_held_out(task, reduce, around),
        step=step,
        applied=applied,
        switched=switched,
        weights=target.weights,
        hyperparameters=hyperparameters,
        schedule_values=values_of(scheduler),
        buffers={name: (buffer, buffer._version) for name, buffer in model.named_buffers()},
        ended=ended,
        operators=acts_on.operators,
        reduce=reduce,
        warmed=_warm_up(step, source, hardware),
    )


def _held_out(task: Task, reduce: Reduce, around: tuple[Any, ...]) -> Source | Stream | None:
    source = held_out_source(task, reduce)
    return None if source is None else with_techniques(source, *around, is_held_out=True)


def _make_model(task: Task, hardware: Device) -> Any:
    model = model_of(task).to(hardware.name)
    # A model's own `train` need not return it.
    model.train()
    return model


def _step_target(model: Any, optimizer: Any, hardware: Device, on_model: ModelTarget) -> StepTarget:
    return StepTarget(
        model,
        optimizer,
        hardware.kind,
        ended=on_model.ended,
        reduce=on_model.reduce,
        sharding=on_model.sharding,
        notes=on_model.notes,
    )


def _warm_up(step: Step, source: Source | Stream, hardware: Device) -> tuple[WarmUpBatch, ...]:
    # Ranks that share the parameters would have to try batches of one number.
    is_possible = step.target.sharding is None or not step.target.sharding.shares_parameters
    if not is_possible or not isinstance(source, LengthSource):
        return ()
    return warm_up(step, source, hardware)


def _wrap_loss(task: Task, target: StepTarget) -> Callable[[Any, Any], Any]:
    loss = task.loss
    for wrap in target.losses:
        loss = wrap(loss)
    return loss


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    import numpy

    numpy.random.seed(seed % 2**32)
