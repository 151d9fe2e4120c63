"""Checks a checkpoint's position, weights, buffers, schedule and scaler against the run's own."""

from collections.abc import Mapping
from typing import Any

import torch

from hotlap.checkpoint.codec import decode
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.equality import is_alike_inside
from hotlap.engine.state.fitting_optimizer import wrong_groups, wrong_states
from hotlap.engine.state.optimizer import trained_names
from hotlap.engine.state.same_task import check_same, fingerprint
from hotlap.engine.state.validity import not_finite
from hotlap.errors import CheckpointCorrupt

_WHOLE = ("last_epoch", "_step_count")
"""What schedules count in whole numbers."""


def check_fits(built: BuiltRun, checkpoint: Checkpoint) -> None:
    """Raise if a step cannot be put into a run that was just built.

    Raises:
        UsageError: the step is of another task; the message names what differs.
        CheckpointCorrupt: it is of this task, and not what a step of it holds.
    """
    check_same(checkpoint.state["task"], fingerprint(built), checkpoint)
    try:
        wrong = _first_wrong(built, checkpoint)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong is not None:
        raise CheckpointCorrupt(
            f"checkpoint '{checkpoint.path}' cannot be loaded: {wrong}. Pass the run's folder "
            "instead of this checkpoint, to use its newest intact one."
        )


def _first_wrong(built: BuiltRun, checkpoint: Checkpoint) -> str | None:
    state, tensors = checkpoint.state, checkpoint.tensors
    steps = state["position"]["step"]
    return (
        _wrong_position(built, state["position"])
        or _wrong_weights(built, tensors["model"])
        or _wrong_names("extra state", state["extra"], _names_without_tensor(built))
        or _wrong_buffers(built, tensors.get("buffers", {}))
        or wrong_groups(built, state["optimizer"], tensors.get("optimizer", {}))
        or wrong_states(built, state["optimizer"]["scalars"], tensors.get("optimizer", {}), steps)
        or wrong_table("schedule", built.scheduler, state["schedule"])
        or wrong_table("scaler", built.step.target.scaler, state["scaler"])
    )


def _wrong_position(built: BuiltRun, position: Mapping[str, int]) -> str | None:
    """Return what is wrong where every epoch has as many steps."""
    each = None if built.task.is_stream else built.task.steps_per_epoch
    if each is None:
        return None
    is_inside = position["in_epoch"] <= each
    if is_inside and position["epoch"] * each + position["in_epoch"] == position["step"]:
        return None
    return (
        f"its step {position['step']} of the run cannot be step {position['in_epoch']} of epoch "
        f"{position['epoch'] + 1}, as the epochs of this task have {each} steps"
    )


def _wrong_weights(built: BuiltRun, weights: Mapping[str, torch.Tensor]) -> str | None:
    # By identity, as they are captured: a parameter that is shared has several names.
    parameters = built.model.named_parameters()
    trained = {id(p): built.weights[k] for k, p in parameters if k in built.weights}
    for name, own in built.model.state_dict(keep_vars=True).items():
        if not isinstance(own, torch.Tensor):
            continue
        wanted = trained.get(id(own), own).dtype
        if weights[name].dtype != wanted:
            return (
                f"the weight '{name}' has dtype {weights[name].dtype}, but {wanted} in the "
                f"recipe's model (if you changed the model, use {weights[name].dtype} again)"
            )
    broken = not_finite(weights, trained_names(built))
    return None if broken is None else f"the weight '{broken}' contains NaN or infinity"


def _names_without_tensor(built: BuiltRun) -> set[str]:
    state = built.model.state_dict()
    return {name for name, value in state.items() if not isinstance(value, torch.Tensor)}


def _wrong_names(what: str, saved: Mapping[str, Any], own: set[str]) -> str | None:
    unknown = sorted(saved.keys() - own)
    return f"it has the {what} '{unknown[0]}', which this model lacks" if unknown else None


def _wrong_buffers(built: BuiltRun, buffers: Mapping[str, torch.Tensor]) -> str | None:
    modules = dict(built.model.named_modules())
    unknown = sorted(path for path in buffers if path.rpartition(".")[0] not in modules)
    return f"the buffer '{unknown[0]}' belongs to no module" if unknown else None


def wrong_table(what: str, owner: Any, saved: Any) -> str | None:
    """Return what is wrong with the state of a schedule or scaler."""
    if owner is None or saved is None:
        return None
    own, given = owner.state_dict(), decode(saved)
    # What others keep may grow while they step.
    is_known = any(kind.__module__.startswith("torch.") for kind in type(owner).__mro__[:2])
    for key in sorted(own, key=str):
        if key not in given:
            return f"'{key}' of the {what} is missing"
        is_broken = key in _WHOLE and (type(given[key]) is not int or given[key] < 0)
        if is_known and key == "base_lrs" and list(given[key]) != list(own[key]):
            return f"'{key}' of the {what} is {given[key]!r}, the task's is {own[key]!r}"
        if is_known and (is_broken or not is_alike_inside(own[key], given[key])):
            kind = "an integer of 0 or more" if is_broken else f"of the kind of {own[key]!r}"
            return f"'{key}' of the {what} is {given[key]!r}, but in the recipe {kind}"
        if any(each != each for each in _rates(key, given[key])):
            return f"'{key}' of the {what} is NaN"
    return None


def _rates(key: Any, value: Any) -> list[Any]:
    return list(value) if key in ("_last_lr", "base_lrs") else []
