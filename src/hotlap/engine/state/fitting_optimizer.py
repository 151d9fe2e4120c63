"""Checks an optimizer's saved groups and state against those of this run."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import torch

from hotlap.checkpoint.codec import decode
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.equality import is_alike, is_same
from hotlap.engine.state.optimizer import PART, VALUE, names_by_id
from hotlap.trial.hyperparameters import IMPLEMENTATION

log = logging.getLogger("hotlap")

_GROUP = "group "
_SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas", "max_momentum")
"""Entries of an optimizer's groups that torch's schedules may change, or put there."""
_NEVER_NEGATIVE = (
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "square_avg",
    "acc_delta",
    "sum",
    "step",
)
"""State of torch's optimizers: sums of squares, largest magnitudes and counts."""
_SIZES = (2, 3, 4, 5, 6)
"""Of a parameter that stands for others: no two dimensions alike."""


def wrong_groups(
    built: BuiltRun, saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> str | None:
    """Return what is wrong with the saved groups, None if nothing is.

    Args:
        built: its optimizer says what groups hold.
        saved: the optimizer's plain data.
        tensors: the optimizer's tensors, by path.
    """
    groups = built.optimizer.param_groups
    if len(groups) != len(saved["groups"]):
        found = f"it has {len(saved['groups'])} parameter groups"
        return f"{found}, the recipe's optimizer has {len(groups)}"
    for number, (own, kept) in enumerate(zip(groups, saved["groups"], strict=True)):
        front = f"{_GROUP}{number}/"
        values = {key: decode(value) for key, value in kept.items()}
        values |= {k.removeprefix(front): v for k, v in tensors.items() if k.startswith(front)}
        for key in sorted({*own, *values} - {"params"}):
            where = f"'{key}' of group {number} of the optimizer"
            if key not in own and not _is_torchs(built.optimizer):
                # Some keep a number of their own in a group, from their first step on.
                continue
            if key not in values or key not in own:
                return f"{where} is {'missing' if key in own else 'unknown'}"
            if not is_alike(own[key], values[key]):
                kind = f"not of the kind of {own[key]!r} in the recipe"
                return f"{where} is {values[key]!r}, {kind}"
        rate = values.get("lr", 0.0)
        if bool(torch.as_tensor(rate).lt(0).any()):
            return f"the learning rate of group {number} is {float(rate)}, which is negative"
        if _is_torchs(built.optimizer):
            wrong = _wrong_numbers(built, own, values)
            if wrong is not None:
                return f"{wrong} in group {number} of the optimizer"
    return None


def _is_torchs(owner: Any) -> bool:
    return type(owner).__module__.startswith("torch.")


def _wrong_numbers(
    built: BuiltRun, own: Mapping[str, Any], values: Mapping[str, Any]
) -> str | None:
    """Return a hyperparameter that is not the task's, or that torch's optimizer would refuse."""
    # What a schedule of somebody else's changes is not known, nor what a hook does in every step.
    is_fixed = built.scheduler is None or _is_torchs(built.scheduler)
    is_fixed = is_fixed and not _has_hooks(built.optimizer)
    scheduled = _SCHEDULED if built.scheduler is not None else ("lr",)
    for key in sorted(own.keys() - {"params", *IMPLEMENTATION, *scheduled}):
        if is_fixed and not is_same(own[key], values[key]):
            return f"'{key}' is {values[key]!r}, the task's is {own[key]!r}"
    allowed = inspect.signature(type(built.optimizer)).parameters
    options = {k: v for k, v in values.items() if k in allowed and k not in IMPLEMENTATION}
    # Some take only matrices.
    dimensions = own["params"][0].dim() if own["params"] else 1
    try:
        type(built.optimizer)([torch.nn.Parameter(torch.zeros((1,) * dimensions))], **options)
    except ValueError as error:
        return str(error)
    return None


def _has_hooks(optimizer: Any) -> bool:
    """Return whether functions of somebody else's are called in every step."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def wrong_states(
    built: BuiltRun, scalars: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], steps: int
) -> str | None:
    """Return what is wrong with the saved states of parameters, None if nothing is.

    Args:
        built: its optimizer says what a state holds.
        scalars: states that are no tensors, by path.
        tensors: those that are.
        steps: done when they were saved.
    """
    names = names_by_id(built)
    owners: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for g, group in enumerate(built.optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            owners[names.get(id(parameter), f"{_GROUP}{g}, {i}")] = (parameter, group)
    own_groups = {f"{_GROUP}{g}" for g in range(len(built.optimizer.param_groups))}
    found: dict[str, dict[str, Any]] = {}
    for path, value in {**tensors, **scalars}.items():
        name, _, key = path.rpartition("/")
        if name in own_groups:
            continue
        if name not in owners:
            return f"'{path}' belongs to no parameter of the optimizer"
        if key == VALUE and value.shape != owners[name][0].shape:
            wanted = list(owners[name][0].shape)
            return f"'{path}' of the optimizer has shape {list(value.shape)}. Expected: {wanted}"
        if key != VALUE:
            found.setdefault(name, {})[key] = value
    known: dict[Any, Any] = {}
    for name, saved in found.items():
        parameter, group = owners[name]
        ask = id(group), parameter.dim(), parameter.is_complex()
        if ask not in known:
            known[ask] = state_like(built.optimizer, group, *ask[1:])
        wrong = _wrong_state(saved, known[ask], parameter)
        if wrong is None and _is_torchs(built.optimizer):
            wrong = _wrong_values(saved, steps + _counted(built.optimizer))
        if wrong is not None:
            return f"the optimizer's state of '{name}' {wrong}"
    return None


def _counted(optimizer: Any) -> int:
    """Return the steps that the task's optimizer has counted when it is made: it may be loaded."""
    counts = (float(state["step"]) for state in optimizer.state.values() if "step" in state)
    return int(max(counts, default=0))


def _wrong_state(
    saved: Mapping[str, Any], like: Mapping[str, Any] | None, parameter: Any
) -> str | None:
    if like is None or any(PART in key for key in saved):
        # Put together of parts, or made by somebody else: what it should be is not known.
        return None
    for key in sorted({*like, *saved}):
        if key not in saved or key not in like:
            return f"{'lacks' if key in like else 'has an unknown'} '{key}'"
        value, sample = saved[key], like[key]
        if not isinstance(sample, torch.Tensor):
            if not is_alike(sample, decode(value)):
                return f"has '{key}' = {value!r}, which is not of the kind of {sample!r}"
            continue
        if not isinstance(value, torch.Tensor) or value.is_complex() != sample.is_complex():
            return f"has '{key}', which is not {sample.dtype}"
        if value.is_floating_point() != sample.is_floating_point():
            return f"has '{key}' as {value.dtype}, not {sample.dtype}"
        wanted = [
            size if given == of else given
            for given, of, size in zip(sample.shape, _SIZES, parameter.shape, strict=False)
        ]
        if list(value.shape) != wanted:
            return f"has '{key}' of shape {list(value.shape)}, not {wanted}"
    return None


def _wrong_values(saved: Mapping[str, Any], steps: int) -> str | None:
    """Return what no optimizer of torch's can have kept after so many steps."""
    for key, value in sorted(saved.items()):
        given = value if isinstance(value, torch.Tensor) else decode(value)
        if not isinstance(given, torch.Tensor | int | float) or PART in key:
            continue
        tensor = torch.as_tensor(given)
        if tensor.is_complex() or not tensor.numel():
            continue
        # Squares may overflow, and training goes on from that: it is saved as a whole step.
        if bool(torch.isnan(tensor).any()):
            return f"has '{key}', which contains NaN"
        if key in _NEVER_NEGATIVE and bool((tensor < 0).any()):
            return f"has '{key}', which is negative"
        if key == "step" and bool((tensor > steps).any()):
            return f"has counted {float(tensor.max()):g} steps after {steps} steps"
    return None


def state_like(
    optimizer: Any, group: Mapping[str, Any], dimensions: int, is_complex: bool = False
) -> Mapping[str, Any] | None:
    """Return what one of torch's optimizers keeps for a small parameter, None if nobody knows.

    Keys and kinds are those for every parameter of as many dimensions, real or complex; see
    `_SIZES`.
    """
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or dimensions > len(_SIZES):
        return None
    allowed = inspect.signature(kind).parameters
    options = {k: v for k, v in group.items() if k in allowed and k != "params"}
    # Theirs hold on the device of the run.
    options |= {k: False for k in ("fused", "capturable", "foreach") if options.get(k)}
    dtype = torch.complex64 if is_complex else None
    parameter = torch.nn.Parameter(torch.zeros(_SIZES[:dimensions], dtype=dtype))
    parameter.grad = torch.zeros_like(parameter)
    try:
        small = kind([parameter], **options)
        small.step()
    except (RuntimeError, ValueError, TypeError) as error:
        log.debug("the state of %s is unknown: %s", kind.__name__, error)
        return None
    return dict(small.state[parameter])
