"""Checks that a learning-rate schedule fits the run."""

from typing import Any

from torch.optim import lr_scheduler

from hotlap.checkpoint.codec import encode
from hotlap.errors import UsageError
from hotlap.task import Task


def check_length(scheduler: Any, task: Task) -> None:
    """Raise where a schedule would not reach its end within the run, or ends too early for it.

    Looked at are schedules that say how long they are: one cycle, cosine, linear, constant and
    polynomial ones of torch's, chains of them, and those of `hotlap.schedules`. Others are taken as
    they are, and so are restarts.

    Raises:
        UsageError: it waits for a measurement and steps by step; it is longer than the run; or it
            is a one-cycle schedule and shorter.
    """
    if task.schedule_per == "step" and isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
        raise UsageError(
            "schedule_per='step' cannot be used with ReduceLROnPlateau, whose metric is measured "
            "once per epoch. Set schedule_per='epoch' in the task."
        )
    steps = _length_of_run(task)
    if steps is None:
        return
    what = f"{steps} {task.schedule_per}{'s' if steps > 1 else ''}"
    given = "steps" if task.epochs is None else "epochs"
    for name, length in _lengths(scheduler):
        if length > steps:
            fits = what if name == "OneCycleLR" else f"at most {what}"
            raise UsageError(
                f"the schedule {name} takes {length} {task.schedule_per}s, and the run has only "
                f"{what}, so the schedule would not reach its end. Use a schedule of {fits}, or "
                f"increase `{given}` in the task."
            )
        if name == "OneCycleLR" and length < steps:
            raise UsageError(
                f"the schedule {name} has total_steps={length}, and the run has {what}, so its "
                "step() would raise an error before the end of the run. Set "
                f"total_steps={steps} in the schedule."
            )


def values_of(scheduler: Any) -> dict[str, Any]:
    """Return what a schedule that has not begun says of itself, as a checkpoint keeps it."""
    found = {}
    for key, value in ({} if scheduler is None else scheduler.state_dict()).items():
        try:
            found[key] = encode(value, "the schedule")
        except UsageError:
            # It cannot be saved either, which saving says.
            continue
    return found


def _length_of_run(task: Task) -> int | None:
    """Return the run's length in what the schedule counts; None if a stream does not say."""
    if task.schedule_per == "step":
        return task.total_steps
    if task.epochs is not None:
        return task.epochs
    per_epoch = task.steps_per_epoch
    return None if per_epoch is None else -(-(task.steps or 0) // per_epoch)


def _lengths(scheduler: Any) -> list[tuple[str, int]]:
    """Return the name of each schedule that knows its length, and that length."""
    if isinstance(scheduler, lr_scheduler.ChainedScheduler):
        return [found for part in scheduler._schedulers for found in _lengths(part)]
    if isinstance(scheduler, lr_scheduler.SequentialLR):
        begins = [0, *scheduler._milestones]
        parts = zip(scheduler._schedulers, begins, strict=True)
        return [(name, begin + n) for part, begin in parts for name, n in _lengths(part)]
    length = getattr(scheduler, "hotlap_total", None)
    for attribute in ("total_steps", "T_max", "total_iters"):
        length = length if length is not None else getattr(scheduler, attribute, None)
    name = getattr(scheduler, "hotlap_name", type(scheduler).__name__)
    return [(name, length)] if isinstance(length, int) else []
