"""Chooses the parts of a run's step: who decides on the update, sums over ranks, a CUDA graph."""

from collections.abc import Callable
from typing import Any, Literal

from hotlap.device.accelerator import Cuda, Device, cannot_leave_out
from hotlap.distributed.reduce import Reduce
from hotlap.engine.step.async_decision import AsyncDecision
from hotlap.engine.step.device_decision import DeviceDecision
from hotlap.engine.step.device_rates import DeviceRates
from hotlap.engine.step.graph import CapturedGraph
from hotlap.engine.step.host_decision import HostDecision
from hotlap.engine.step.passes import Passes
from hotlap.engine.step.rank_sum import RankSum
from hotlap.engine.step.rates_ahead import RatesAhead, why_unforeseen
from hotlap.engine.step.sharded_sum import ShardedSum
from hotlap.engine.step.step import Attempt, Decision, Step
from hotlap.engine.step.update import Update
from hotlap.task import Task
from hotlap.techniques import StepTarget

Place = Literal["host", "async", "device"]
"""Where it is decided whether an update is taken, see `hotlap.engine.step.step`."""


def _nothing() -> None:
    return None


def step_of(
    task: Task,
    implementation: str | None,
    hardware: Device,
    trained: tuple[Any, Any, Any],
    scheduler: Any,
    target: StepTarget,
    check_finite: bool,
    follows_schedule: bool,
    reduce: Reduce,
    spare: Callable[[], Any] = _nothing,
) -> Step:
    """Return what takes the run's steps.

    Args:
        task: what is learned.
        implementation: of the optimizer, as a technique has chosen it; None if none has.
        hardware: the device.
        trained: model, loss and optimizer.
        scheduler: that steps with the optimizer, None if none does.
        target: what techniques act on.
        check_finite: leave an update out if the loss, or the norm that is clipped, is not finite.
        follows_schedule: the schedule may follow on the device.
        reduce: the ranks that train together.
        spare: see `ShardedSum`.
    """
    is_foreseen = follows_schedule and why_unforeseen(scheduler, trained[2]) is None
    return make_step(
        *trained,
        target=target,
        hardware=hardware,
        decides_on="host"
        if reduce.world > 1
        else _place(implementation, hardware, trained[2], is_foreseen, target, check_finite),
        scheduler=scheduler,
        is_foreseen=is_foreseen,
        reduce=reduce,
        seed=task.seed,
        spare=spare,
        clip_norm=task.clip_norm,
        clip_value=task.clip_value,
        check_finite=check_finite,
    )


def make_step(
    model: Any,
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    target: StepTarget,
    hardware: Device | None = None,
    decides_on: Place = "host",
    scheduler: Any = None,
    is_foreseen: bool = True,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    check_finite: bool = True,
    reduce: Reduce | None = None,
    seed: int = 0,
    spare: Callable[[], Any] = _nothing,
) -> Step:
    """Return a step of these parts, captured as a graph if the target asks for one.

    Args:
        model: in training mode.
        loss: see `Task.loss`.
        optimizer: over the tensors that are trained.
        target: what the plan's techniques hung onto the step.
        hardware: a CUDA device, if anything but the host decides.
        decides_on: where it is decided whether an update is taken.
        scheduler: that steps with the optimizer, None if none does.
        is_foreseen: its next rates are known; also if there is none.
        clip_norm: see `Task`.
        clip_value: see `Task`.
        check_finite: see `step_of`.
        reduce: the ranks that train together; this process alone if None.
        seed: see `RankSum`.
        spare: see `ShardedSum`.
    """
    passes = Passes(model, loss, optimizer, target)
    update = Update(
        model,
        optimizer,
        target,
        clip_norm=clip_norm,
        clip_value=clip_value,
        check_finite=check_finite,
    )
    decision: Decision = HostDecision(update)
    rates = ahead = None
    if decides_on == "async":
        assert isinstance(hardware, Cuda)
        decision = AsyncDecision(update, hardware)
        passes.watch = decision.read
    elif decides_on == "device":
        assert isinstance(hardware, Cuda)
        rates = DeviceRates(optimizer, hardware)
        if scheduler is not None and is_foreseen:
            ahead = RatesAhead(scheduler, optimizer, hardware)
        if target.graph is not None or ahead is not None:
            update.adapt_optimizer = rates.use_device_rates
        decision = DeviceDecision(update, passes, hardware, rates, ahead)
    ranks = None
    if reduce is not None and reduce.world > 1:
        if target.sharding is not None and target.sharding.shares_parameters:
            ranks = ShardedSum(passes, optimizer, reduce, seed, target.sharding, spare)
        else:
            ranks = RankSum(passes, optimizer, reduce, seed)
    attempt = Attempt(ranks or passes, update, decision)
    if target.graph is None or rates is None:
        return Step(passes, update, decision, attempt, ranks, ahead)
    assert isinstance(hardware, Cuda)
    if scheduler is not None and ahead is None:
        target.graph.single = why_unforeseen(scheduler, optimizer)
    graph = CapturedGraph(model, attempt, update, hardware, rates, ahead)
    return Step(passes, update, decision, graph, ahead=ahead)


def _place(
    implementation: str | None,
    hardware: Device,
    optimizer: Any,
    is_foreseen: bool,
    target: StepTarget,
    check_finite: bool,
) -> Place:
    if not isinstance(hardware, Cuda):
        return "host"
    if target.graph is not None:
        return "device"
    if not check_finite:
        return "host"
    # Another schedule must be told at once whether the update was taken.
    if not is_foreseen or not _is_fused(implementation, optimizer):
        return "async"
    return "device" if cannot_leave_out(optimizer) is None else "async"


def _is_fused(implementation: str | None, optimizer: Any) -> bool:
    if implementation is not None:
        return implementation == "fused"
    return all(group.get("fused") for group in optimizer.param_groups)
