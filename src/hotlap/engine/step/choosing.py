"""Which kind of step a run takes, by its device, its plan and its schedule."""

from typing import Any

from hotlap.device.accelerator import Cuda, Device, cannot_leave_out
from hotlap.engine.step.decided import DecidedStep
from hotlap.engine.step.early import EarlyStep
from hotlap.engine.step.graph import GraphStep
from hotlap.engine.step.update import Step
from hotlap.task import Task
from hotlap.techniques import StepTarget
from hotlap.techniques.applying import Applied


def step_of(
    task: Task,
    applied: Applied,
    hardware: Device,
    trained: tuple[Any, Any, Any],
    target: StepTarget,
    check_finite: bool,
) -> Step:
    """Return what takes the run's steps.

    Args:
        task: what is learned.
        applied: the plan's techniques.
        hardware: the device.
        trained: model, loss and optimizer.
        target: what techniques act on.
        check_finite: see `Step`.
    """
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
