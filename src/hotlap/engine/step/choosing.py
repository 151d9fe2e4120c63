"""Chooses the kind of step of a run, by its device, its plan and its schedule."""

from typing import Any

from hotlap.device.accelerator import Cuda, Device, cannot_leave_out
from hotlap.engine.step.async_check import AsyncCheckStep
from hotlap.engine.step.device_check import DeviceCheckStep
from hotlap.engine.step.graph import GraphStep
from hotlap.engine.step.update import Step
from hotlap.task import Task
from hotlap.techniques import StepTarget


def step_of(
    task: Task,
    implementation: str | None,
    hardware: Device,
    trained: tuple[Any, Any, Any],
    target: StepTarget,
    check_finite: bool,
) -> Step:
    """Return what takes the run's steps.

    Args:
        task: what is learned.
        implementation: of the optimizer, as a technique has chosen it; None if none has.
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
    optimizer = trained[2]
    is_fused = _is_fused(implementation, optimizer)
    if not is_asked and is_fused and cannot_leave_out(optimizer) is None:
        return DeviceCheckStep(*trained, device=hardware, **options)
    return AsyncCheckStep(*trained, device=hardware, **options)


def _is_fused(implementation: str | None, optimizer: Any) -> bool:
    if implementation is not None:
        return implementation == "fused"
    return all(group.get("fused") for group in optimizer.param_groups)
