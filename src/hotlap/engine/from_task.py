"""Model, optimizer and schedule as a task's functions make them, and what is refused of them."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter

from hotlap.engine.step.scheduling import check_length
from hotlap.errors import UsageError
from hotlap.task import Task

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def model_of(task: Task) -> Any:
    """Return a new model.

    Raises:
        UsageError: it is no module, or has parameters without a shape.
    """
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


def scheduler_of(task: Task, optimizer: Any) -> Any:
    """Return a new scheduler over that optimizer, None if the task has no schedule.

    Raises:
        UsageError: it is none, is one of another optimizer, or of another length than the task.
    """
    if task.schedule is None:
        return None
    scheduler = made_by("schedule", task.schedule, optimizer, "step", "state_dict")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise UsageError(
            "schedule() gave a scheduler of another optimizer than it was given, so this run's "
            "learning rate would never change. Allowed: one over its argument."
        )
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
        UsageError: it raised ValueError, or made something else.
    """
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


def check_closure(optimizer: Any) -> None:
    """Raise UsageError if an optimizer's `step` needs an argument."""
    parameters = inspect.signature(optimizer.step).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in _ANY_NUMBER]
    if needed:
        raise UsageError(
            f"optimizer() gave {type(optimizer).__name__}, whose `step` needs `{needed[0].name}`: "
            "it would go forward and backward itself. Allowed: one whose `step()` takes the "
            "gradients that are there, as AdamW or SGD."
        )


def check_parameters(model: Any, optimizer: Any) -> None:
    """Raise UsageError if an optimizer holds nothing of the model that is to be trained."""
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if own and not own & held:
        raise UsageError(
            "optimizer() holds no parameter of the model that it was given, which would learn "
            "nothing. Allowed: an optimizer over that model's parameters; or, where only others "
            "are trained, a model whose own are frozen by `requires_grad_(False)`."
        )
