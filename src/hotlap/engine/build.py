"""A task, a plan and a device become a run that can take steps."""

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from hotlap.device.accelerator import Cuda, Device, cannot_leave_out, device_of
from hotlap.engine.step.decided import DecidedStep
from hotlap.engine.step.early import EarlyStep
from hotlap.engine.step.graph import GraphStep
from hotlap.engine.step.scheduling import check_length, values_of
from hotlap.engine.step.update import Step
from hotlap.engine.warm import Warmed, warm_up
from hotlap.errors import UsageError
from hotlap.feed.sources.lengths import LengthSource
from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.feed.transfer.plain import Moved
from hotlap.plan import Plan
from hotlap.sequences.lengths import Budget, lengths_of
from hotlap.task import Task, is_stream
from hotlap.techniques import FeedTarget, ModelTarget, OptimizerTarget, StepTarget, check, registry
from hotlap.techniques.applying import Applied, Switched
from hotlap.techniques.compile import GRAPHED_MODES

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass
class Built:
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
    warmed: tuple[Warmed, ...] = ()
    """Batches that were tried before the first step."""

    @property
    def device(self) -> str:
        """The device, as torch names it."""
        return self.hardware.name

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
) -> Built:
    """Make the run. Everything random follows from the task's seed.

    Args:
        task: what is learned.
        plan: how it is executed.
        device: as torch names it; the first accelerator if None, else the CPU.
        check_finite: see `Step`.
        fill_ahead: let the feed reach its steady state at once, for trials.
        techniques: techniques from outside, as `module:NAME`.

    Raises:
        PlanError: the plan holds what no plan holds.
        UsageError: model, optimizer or schedule are not what the task says.
    """
    check(plan, registry(techniques))
    hardware = device_of(device)
    applied = Applied(plan, techniques)
    switched, ended = applied.start(hardware.kind), []
    try:
        return _build(task, plan, hardware, applied, switched, ended, check_finite, fill_ahead)
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
    fill_ahead: bool,
) -> Built:
    seed_everything(task.seed)
    model = _module(task).to(hardware.name).train()
    on_model = ModelTarget(model, [], ended=ended)
    applied.apply("model", on_model)
    on_model.module = None
    optimizer = _made("optimizer", task.optimizer, model, "step", "param_groups")
    _check_closure(optimizer)
    _check_parameters(model, optimizer)
    # Before a schedule changes them.
    hyperparameters = _hyperparameters(model, optimizer)
    target = StepTarget(model, optimizer, hardware.kind, ended=on_model.ended, notes=on_model.notes)
    applied.apply("step", target)
    target.after_step += switched.after_step
    optimizer = target.optimizer
    target.module = target.optimizer = None
    scheduler = _scheduler(task, optimizer)
    acts_on = OptimizerTarget(optimizer, taken_by="cuda_graph" if target.graph else None)
    applied.apply("optimizer", acts_on)
    acts_on.optimizer = None
    held_out = task.held_out is not None
    source = _with_techniques(training_source(task), applied, hardware, fill_ahead)
    _check_statistics(task, model, source.micro)
    _check_gradients(task, target, source.micro)
    loss = task.loss
    for around in target.losses:
        loss = around(loss)
    step = _step(task, applied, hardware, (model, loss, optimizer), target, check_finite)
    return Built(
        task=task,
        plan=plan,
        hardware=hardware,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        source=source,
        held_out=_with_techniques(_held_out(task, hardware), applied, hardware, fill_ahead)
        if held_out
        else None,
        step=step,
        applied=applied,
        switched=switched,
        weights=target.weights,
        hyperparameters=hyperparameters,
        schedule_values=values_of(scheduler),
        buffers={name: (buffer, buffer._version) for name, buffer in model.named_buffers()},
        ended=ended,
        operators=acts_on.operators,
        warmed=warm_up(step, source, hardware) if isinstance(source, LengthSource) else (),
    )


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    import numpy

    numpy.random.seed(seed % 2**32)


def _module(task: Task) -> Any:
    model = task.model()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model() gave {type(model).__name__}. Allowed: a torch.nn.Module.")
    lazy = [n for n, p in model.named_parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise UsageError(
            f"the model's {lazy[0]} has no shape before the first forward. Allowed: model() that "
            "goes forward once itself."
        )
    return model


def _scheduler(task: Task, optimizer: Any) -> Any:
    if task.schedule is None:
        return None
    scheduler = _made("schedule", task.schedule, optimizer, "step", "state_dict")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UsageError(
            "schedule() gave a scheduler of another optimizer than it was given, so this run's "
            "learning rate would never change. Allowed: one over its argument."
        )
    check_length(scheduler, task)
    return scheduler


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


def _check_gradients(task: Task, target: StepTarget, micro: int) -> None:
    mode = target.notes.get("compile_mode")
    if target.device == "cuda" and mode in GRAPHED_MODES and micro < task.logical_batch:
        raise UsageError(
            f"compile in mode='{mode}' with steps in micro-batches: the next one's graph writes "
            "over the gradients of the one before. Allowed: mode='default', or whole steps."
        )


def _hyperparameters(model: Any, optimizer: Any) -> dict[str, str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {
        f"group {number}, parameters": ", ".join(
            names.get(id(parameter), "one that is not the model's") for parameter in group["params"]
        )
        for number, group in enumerate(optimizer.param_groups)
    }
    return held | {
        f"group {number}, {key}": repr(value)
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if key not in ("params", "foreach", "fused")
    }


def _made(what: str, make: Callable[[Any], Any], given: Any, *needed: str) -> Any:
    try:
        made = make(given)
    except ValueError as error:
        raise UsageError(f"{what}() raised ValueError: {error}") from error
    absent = [name for name in needed if not hasattr(made, name)]
    if absent:
        raise UsageError(
            f"{what}() gave {type(made).__name__}, which has no `{absent[0]}`. Allowed: what "
            f"torch.optim has of this kind."
        )
    return made


def _check_closure(optimizer: Any) -> None:
    parameters = inspect.signature(optimizer.step).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in _ANY_NUMBER]
    if needed:
        raise UsageError(
            f"optimizer() gave {type(optimizer).__name__}, whose `step` needs `{needed[0].name}`: "
            "it would go forward and backward itself. Allowed: one whose `step()` takes the "
            "gradients that are there, as AdamW or SGD."
        )


def _check_parameters(model: Any, optimizer: Any) -> None:
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if own and not own & held:
        raise UsageError(
            "optimizer() holds no parameter of the model that it was given, which would learn "
            "nothing. Allowed: an optimizer over that model's parameters; or, where only others "
            "are trained, a model whose own are frozen by `requires_grad_(False)`."
        )


def training_source(task: Task) -> Source | Stream:
    """Return what gives the task's training samples in batches, no technique around it."""
    options: dict[str, Any] = {
        "micro": task.most_samples,
        "seed": task.seed,
        "shuffle": task.shuffle,
        "drop_last": task.drop_last,
        "collate": task.collate,
        "transform": task.transform,
        "batch_transform": task.batch_transform,
    }
    if task.is_stream:
        return Stream(
            task.data,
            task.logical_batch,
            buffer=task.shuffle_buffer,
            ends=task.steps is None,
            **options,
        )
    per_epoch = task.steps_per_epoch or 1
    options["epochs"] = task.epochs or -(-(task.steps or 0) // per_epoch)
    if task.lengths is None:
        return Source(task.data, task.logical_batch, **options)
    return LengthSource(
        task.data,
        task.logical_batch,
        lengths=task.sample_lengths,
        budget=task.budget,
        accumulate=task.accumulate,
        **options,
    )


def _held_out(task: Task, hardware: Device) -> Source | Stream:
    options: dict[str, Any] = {"seed": task.seed, "shuffle": False, "collate": task.collate}
    size = task.most_samples * hardware.evaluation_batch
    if is_stream(task.held_out):
        return Stream(task.held_out, size, ends=True, name="held_out", **options)
    if task.budget is None:
        return Source(task.held_out, size, **options)
    tokens = task.budget.tokens * hardware.evaluation_batch
    if not callable(task.lengths):
        # Their lengths are not known; as many as would fit if all were the longest.
        longest = int(task.budget.edges[-1])
        return Source(task.held_out, tokens // longest, **options)
    lengths = lengths_of(task.lengths, task.held_out)
    budget = Budget(lengths, max(tokens, int(lengths.max())), task.budget.to)
    most = budget.most_samples
    return LengthSource(task.held_out, most, lengths=lengths, budget=budget, **options)


def _with_techniques(
    source: Source | Stream, applied: Applied, hardware: Device, fill_ahead: bool
) -> Source | Stream:
    target = FeedTarget(
        source, own_order=True, fill_ahead=fill_ahead, size=source.length, device=hardware
    )
    applied.apply("feed", target)
    target.loader = None
    source.wraps, source.notes = target.fetchers, target.notes
    if hardware.is_apart:
        source.transfer = target.transfer or Moved(hardware.name)
    return source


def _step(
    task: Task,
    applied: Applied,
    hardware: Device,
    trained: tuple[Any, Any, Any],
    target: StepTarget,
    check_finite: bool,
) -> Step:
    options: dict[str, Any] = {
        "target": target,
        "clip_norm": task.clip_norm,
        "clip_value": task.clip_value,
        "check_finite": check_finite,
    }
    if not isinstance(hardware, Cuda):
        return Step(*trained, **options)
    if target.graph is not None:
        return GraphStep(*trained, device=hardware, **options)
    if not check_finite:
        return Step(*trained, **options)
    # A schedule that steps with the optimizer must know at once whether that was taken.
    is_asked = task.schedule is not None and task.schedule_per == "step"
    if not is_asked and _is_fused(applied, trained[2]) and cannot_leave_out(trained[2]) is None:
        return DecidedStep(*trained, device=hardware, **options)
    return EarlyStep(*trained, device=hardware, **options)


def _is_fused(applied: Applied, optimizer: Any) -> bool:
    chosen = applied.options_of("optimizer")
    if chosen is not None:
        return chosen.implementation == "fused"
    return all(group.get("fused") for group in optimizer.param_groups)
