"""Whether a step fits what was built; nothing is loaded for that."""

import inspect
import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch

from hotlap.checkpoint.codec import decode
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import Built
from hotlap.engine.state.meaning import not_finite
from hotlap.engine.state.optimizer import PART, VALUE, names_by_id
from hotlap.engine.state.same_task import check_same, fingerprint
from hotlap.errors import CheckpointCorrupt
from hotlap.trial.numbers import IMPLEMENTATION

log = logging.getLogger("hotlap")

_GROUP = "group "
_WHOLE = ("last_epoch", "_step_count")
"""What schedules count in whole numbers."""
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


def check_fits(built: Built, checkpoint: Checkpoint) -> None:
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
        raise CheckpointCorrupt(f"{checkpoint.path}: {wrong}")


def trained_names(built: Built) -> set[str]:
    """Return the names of the weights that the optimizer changes."""
    names = names_by_id(built)
    groups = built.optimizer.param_groups
    return {names[id(p)] for group in groups for p in group["params"] if id(p) in names}


def _first_wrong(built: Built, checkpoint: Checkpoint) -> str | None:
    state, tensors = checkpoint.state, checkpoint.tensors
    steps = state["position"]["step"]
    return (
        _wrong_position(built, state["position"])
        or _wrong_weights(built, tensors["model"])
        or _wrong_names("modules keep", state["extra"], _extra(built))
        or _wrong_buffers(built, tensors.get("buffers", {}))
        or _wrong_groups(built, state["optimizer"], tensors.get("optimizer", {}))
        or _wrong_states(built, state["optimizer"]["scalars"], tensors.get("optimizer", {}), steps)
        or _wrong_table("schedule", built.scheduler, state["schedule"])
        or _wrong_table("scaler", built.step.target.scaler, state["scaler"])
    )


def _wrong_position(built: Built, position: Mapping[str, int]) -> str | None:
    """Return what is wrong where every epoch has as many steps."""
    each = None if built.task.is_stream else built.task.steps_per_epoch
    if each is None:
        return None
    is_inside = position["in_epoch"] <= each
    if is_inside and position["epoch"] * each + position["in_epoch"] == position["step"]:
        return None
    return (
        f"after step {position['step']} it cannot be at step {position['in_epoch']} of epoch "
        f"{position['epoch'] + 1}: an epoch has {each} steps"
    )


def _wrong_weights(built: Built, weights: Mapping[str, torch.Tensor]) -> str | None:
    # By identity, as they are captured: a parameter that is shared has several names.
    parameters = built.model.named_parameters()
    trained = {id(p): built.weights[k] for k, p in parameters if k in built.weights}
    for name, own in built.model.state_dict(keep_vars=True).items():
        if not isinstance(own, torch.Tensor):
            continue
        wanted = trained.get(id(own), own).dtype
        if weights[name].dtype != wanted:
            return f"the weight '{name}' is {weights[name].dtype}, the model's is {wanted}"
    broken = not_finite(weights, trained_names(built))
    return None if broken is None else f"the weight '{broken}' is not finite"


def _extra(built: Built) -> set[str]:
    state = built.model.state_dict()
    return {name for name, value in state.items() if not isinstance(value, torch.Tensor)}


def _wrong_names(what: str, saved: Mapping[str, Any], own: set[str]) -> str | None:
    unknown = sorted(saved.keys() - own)
    return f"it has '{unknown[0]}' of what {what}, this model has not" if unknown else None


def _wrong_buffers(built: Built, buffers: Mapping[str, torch.Tensor]) -> str | None:
    modules = dict(built.model.named_modules())
    unknown = sorted(path for path in buffers if path.rpartition(".")[0] not in modules)
    return f"the buffer '{unknown[0]}' is of no module" if unknown else None


def _wrong_groups(
    built: Built, saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> str | None:
    groups = built.optimizer.param_groups
    if len(groups) != len(saved["groups"]):
        return f"the optimizer has {len(groups)} groups, it has {len(saved['groups'])}"
    for number, (own, kept) in enumerate(zip(groups, saved["groups"], strict=True)):
        front = f"{_GROUP}{number}/"
        values = {key: decode(value) for key, value in kept.items()}
        values |= {k.removeprefix(front): v for k, v in tensors.items() if k.startswith(front)}
        for key in sorted({*own, *values} - {"params"}):
            where = f"'{key}' of group {number} of the optimizer"
            if key not in values or key not in own:
                return f"{where} is {'missing' if key in own else 'unknown'}"
            if not _is_alike(own[key], values[key]):
                return f"{where} is {values[key]!r}, where one like {own[key]!r} should be"
        rate = values.get("lr", 0.0)
        if bool(torch.as_tensor(rate).lt(0).any()):
            return f"the learning rate of group {number} is {float(rate)}"
        if _is_torchs(built.optimizer):
            wrong = _wrong_numbers(built, own, values)
            if wrong is not None:
                return f"{wrong} in group {number} of the optimizer"
    return None


def _is_torchs(owner: Any) -> bool:
    return type(owner).__module__.startswith("torch.")


def _wrong_numbers(built: Built, own: Mapping[str, Any], values: Mapping[str, Any]) -> str | None:
    """Return a hyperparameter that is not the task's, or that torch's optimizer would refuse."""
    # What a schedule of somebody else's changes is not known.
    is_fixed = built.scheduler is None or _is_torchs(built.scheduler)
    scheduled = _SCHEDULED if built.scheduler is not None else ("lr",)
    for key in sorted(own.keys() - {"params", *IMPLEMENTATION, *scheduled}):
        if is_fixed and not _is_same(own[key], values[key]):
            return f"'{key}' is {values[key]!r}, the task's is {own[key]!r}"
    allowed = inspect.signature(type(built.optimizer)).parameters
    options = {k: v for k, v in values.items() if k in allowed and k not in IMPLEMENTATION}
    try:
        type(built.optimizer)([torch.nn.Parameter(torch.zeros(1))], **options)
    except ValueError as error:
        return str(error)
    return None


def _is_same(own: Any, saved: Any) -> bool:
    if isinstance(own, torch.Tensor) or isinstance(saved, torch.Tensor):
        return bool(torch.equal(torch.as_tensor(own).cpu(), torch.as_tensor(saved).cpu()))
    if isinstance(own, list | tuple):
        return len(own) == len(saved) and all(map(_is_same, own, saved))
    return own == saved


def _is_alike(own: Any, saved: Any) -> bool:
    """True if a value may stand where another one stood: of its kind, and as many."""
    if own is None or isinstance(own, bool):
        # Whoever chooses an implementation changes one into the other.
        return saved is None or isinstance(saved, bool) or (own is None and not _is_table(saved))
    if _is_number(own):
        return _is_number(saved)
    if isinstance(own, list | tuple):
        if not isinstance(saved, list | tuple) or len(own) != len(saved):
            return False
        return all(map(_is_alike, own, saved))
    return isinstance(saved, type(own))


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    # Those of numpy are reals as well.
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _wrong_states(
    built: Built, scalars: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], steps: int
) -> str | None:
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
            return f"'{path}' of the optimizer is of no parameter that it holds"
        if key == VALUE and value.shape != owners[name][0].shape:
            return f"'{path}' of the optimizer has the shape {list(value.shape)}"
        if key != VALUE:
            found.setdefault(name, {})[key] = value
    known: dict[Any, Any] = {}
    for name, saved in found.items():
        parameter, group = owners[name]
        ask = id(group), parameter.dim()
        if ask not in known:
            known[ask] = _state_like(built.optimizer, group, parameter.dim())
        wrong = _wrong_state(saved, known[ask], parameter)
        if wrong is None and _is_torchs(built.optimizer):
            wrong = _wrong_values(saved, steps)
        if wrong is not None:
            return f"the optimizer's state of '{name}' {wrong}"
    return None


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
            if not _is_alike(sample, decode(value)):
                return f"has {value!r} as '{key}'"
            continue
        if not isinstance(value, torch.Tensor) or value.is_complex() != sample.is_complex():
            return f"has '{key}' in another format"
        if value.is_floating_point() != sample.is_floating_point():
            return f"has '{key}' in the format {value.dtype}"
        wanted = [
            size if given == of else given
            for given, of, size in zip(sample.shape, _SIZES, parameter.shape, strict=False)
        ]
        if list(value.shape) != wanted:
            return f"has '{key}' of the shape {list(value.shape)}, not {wanted}"
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
        if not bool(torch.isfinite(tensor).all()):
            return f"has '{key}', which is not finite"
        if key in _NEVER_NEGATIVE and bool((tensor < 0).any()):
            return f"has '{key}', which is negative"
        if key == "step" and bool((tensor > steps).any()):
            return f"has counted {float(tensor.max()):g} of {steps} steps"
    return None


def _state_like(
    optimizer: Any, group: Mapping[str, Any], dimensions: int
) -> Mapping[str, Any] | None:
    """Return what one of torch's optimizers keeps for a small parameter, None if nobody knows.

    Keys and kinds are those for every parameter of as many dimensions; see `_SIZES`.
    """
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or dimensions > len(_SIZES):
        return None
    allowed = inspect.signature(kind).parameters
    options = {k: v for k, v in group.items() if k in allowed and k != "params"}
    # Theirs hold on the device of the run.
    options |= {k: False for k in ("fused", "capturable", "foreach") if options.get(k)}
    parameter = torch.nn.Parameter(torch.zeros(_SIZES[:dimensions]))
    parameter.grad = torch.zeros_like(parameter)
    try:
        small = kind([parameter], **options)
        small.step()
    except (RuntimeError, ValueError, TypeError) as error:
        log.debug("what %s keeps is not known: %s", kind.__name__, error)
        return None
    return dict(small.state[parameter])


def _wrong_table(what: str, owner: Any, saved: Any) -> str | None:
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
        if is_known and (is_broken or not _is_alike_inside(own[key], given[key])):
            return f"'{key}' of the {what} is {given[key]!r}, like {own[key]!r} it should be"
        if any(each != each for each in _rates(key, given[key])):
            return f"'{key}' of the {what} is NaN"
    return None


def _rates(key: Any, value: Any) -> list[Any]:
    return list(value) if key in ("_last_lr", "base_lrs") else []


def _is_alike_inside(own: Any, saved: Any) -> bool:
    """As `_is_alike`, and tables inside have the same keys where these are names."""
    if isinstance(own, Mapping):
        if not isinstance(saved, Mapping) or type(own) is not type(saved):
            return False
        if all(isinstance(key, str) for key in own):
            return own.keys() == saved.keys() and all(
                _is_alike_inside(own[key], saved[key]) for key in own
            )
        return True
    if isinstance(own, list | tuple) and any(map(_is_table, own)):
        if not isinstance(saved, list | tuple) or len(own) != len(saved):
            return False
        return all(map(_is_alike_inside, own, saved))
    return _is_alike(own, saved)
