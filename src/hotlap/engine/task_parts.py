"""Builds model, optimizer and schedule with a task's functions, and checks what these return."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from hotlap.engine.checks.schedule_length import check_length
from hotlap.errors import UsageError
from hotlap.task import Task

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_GIVEN = {"optimizer": "model", "schedule": "optimizer"}
"""The function's name in the task -> what it is called with."""
_AS_IN = {
    "optimizer": "lambda model: torch.optim.SGD(model.parameters(), lr=0.1)",
    "schedule": "lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 10)",
}


def model_of(task: Task) -> Any:
    """Return a new model.

    Raises:
        UsageError: it is no module, or has parameters without a shape.
    """
    model = task.model()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"model() returned {type(model).__name__}. Expected: a torch.nn.Module.")
    lazy = [n for n, p in model.named_parameters() if isinstance(p, UninitializedParameter)]
    if lazy:
        raise UsageError(
            f"the model's lazy parameter '{lazy[0]}' has no shape yet. Run one forward pass in "
            "model(), before the model is returned."
        )
    return model


def scheduler_of(task: Task, optimizer: Any) -> Any:
    """Return a new scheduler over that optimizer, None if the task has no schedule.

    Raises:
        UsageError: it is none, is one of another optimizer, needs what no run gives it, or is of
            another length than the task.
    """
    if task.schedule is None:
        return None
    scheduler = made_by("schedule", task.schedule, optimizer, "step", "state_dict")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UsageError(
            "schedule() returned a scheduler of another optimizer, so this run's learning rate "
            "would never change. Create the scheduler for the optimizer that is passed to "
            "schedule(optimizer)."
        )
    _check_step(scheduler)
    check_length(scheduler, task)
    return scheduler


def hyperparameters_of(model: Any, optimizer: Any) -> dict[str, str]:
    """Return the optimizer's hyperparameters, by group and name, as text."""
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


def made_by(what: str, make: Callable[[Any], Any], given: Any, *needed: str) -> Any:
    """Return `make(given)`.

    Args:
        what: the function's name in the task, for messages.
        make: the function.
        given: its argument.
        needed: attributes that what it makes must have.

    Raises:
        UsageError: it raised ValueError, made something else, or is a class that does not take
            what it is given, such as `torch.optim.SGD` itself.
    """
    try:
        made = make(given)
    except ValueError as error:
        raise UsageError(
            f"{what}() raised ValueError: {error}. Check the values that {what}() uses."
        ) from error
    except TypeError as error:
        if not isinstance(make, type | functools.partial):
            # A function of the user's own: its traceback says more.
            raise
        raise UsageError(
            f"{what} is {_name_of(make)}, which raised TypeError when it was called with the "
            f"{_GIVEN[what]}: {error}. Expected: a function of the {_GIVEN[what]}, as in "
            f"`{_AS_IN[what]}`."
        ) from error
    absent = [name for name in needed if not hasattr(made, name)]
    if absent:
        raise UsageError(
            f"{what}() returned {type(made).__name__}, which has no `{absent[0]}`. Expected: an "
            f"object with `{'` and `'.join(needed)}`, as in torch.optim."
        )
    return made


def _name_of(make: Any) -> str:
    made = make.func if isinstance(make, functools.partial) else make
    return getattr(made, "__qualname__", type(made).__name__)


def check_closure(optimizer: Any) -> None:
    """Raise UsageError if an optimizer's `step` needs an argument."""
    needed = _argument_of(optimizer.step)
    if needed is not None:
        raise UsageError(
            f"optimizer() returned {type(optimizer).__name__}, whose `step` needs the argument "
            f"`{needed}`. Use an optimizer whose `step()` needs none and applies the gradients in "
            "`.grad`, such as AdamW or SGD."
        )


def _check_step(scheduler: Any) -> None:
    """Raise UsageError if a schedule's `step` needs an argument that no run gives it."""
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        return
    needed = _argument_of(scheduler.step)
    if needed is not None:
        raise UsageError(
            f"schedule() returned {type(scheduler).__name__}, whose `step` needs the argument "
            f"`{needed}`. Use a schedule whose `step()` needs none, such as those in "
            "torch.optim.lr_scheduler; only ReduceLROnPlateau is given the held-out loss."
        )


def _argument_of(step: Callable[..., Any]) -> str | None:
    """Return the first argument that a function cannot be called without, None if there is none."""
    parameters = inspect.signature(step).parameters.values()
    needed = (p.name for p in parameters if p.default is p.empty and p.kind not in _ANY_NUMBER)
    return next(needed, None)


def check_parameters(model: Any, optimizer: Any) -> None:
    """Raise UsageError if an optimizer holds nothing of the model that is to be trained."""
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if own and not own & held:
        raise UsageError(
            "optimizer() returned an optimizer that holds no trainable parameter of the model, so "
            "the model would not learn. In the recipe's optimizer(model), make the optimizer of "
            "`model.parameters()`. If nothing of the model is to be trained, freeze it with "
            "`model.requires_grad_(False)`."
        )
