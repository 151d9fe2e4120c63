"""Everything that a run's future depends on, taken out of it and put back."""

import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import torch

from hotlap.checkpoint.codec import decode, encode
from hotlap.checkpoint.read import Checkpoint
from hotlap.engine.build import Built
from hotlap.errors import UsageError
from hotlap.trial.numbers import IMPLEMENTATION

_PART = "#"
"""Between the name of a state and that of one of its parts."""

_SPARSE = {"indices", "values", "is_coalesced"}
"""Parts of a sparse tensor."""

_VALUE = "its value"
"""Name, among the states of a parameter, of its own value, where the model does not keep that."""

Tensors = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Position:
    """How far a run has come."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """The epoch that the next step belongs to, from 0."""
    in_epoch: int = 0
    """Steps of it that are done."""


def capture(built: Built, position: Position) -> tuple[Tensors, dict[str, Any]]:
    """Return the run's tensors, by file and name, and everything else as plain data."""
    # By identity: a parameter that is shared has several names, and is trained under one.
    named = built.model.named_parameters()
    trained = {id(p): built.weights[k] for k, p in named if k in built.weights}
    weights: dict[str, torch.Tensor] = {}
    extra = {}
    for name, value in built.model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            weights[name] = trained.get(id(value), value).detach()
        else:
            # What a module gives by `get_extra_state`.
            extra[name] = encode(value, f"the model's {name}")
    optimizer, groups = _optimizer(built)
    rng, others = _random_states()
    state = {
        "position": asdict(position),
        "skipped": built.step.skipped,
        "task": fingerprint(built),
        "extra": extra,
        "optimizer": groups,
        "schedule": None
        if built.scheduler is None
        else encode(built.scheduler.state_dict(), "the schedule"),
        "random": others,
        "scaler": None
        if built.step.target.scaler is None
        else encode(built.step.target.scaler.state_dict(), "the scaler"),
    }
    tensors = {"model": weights, "optimizer": optimizer, "random": rng}
    buffers = _unsaved_buffers(built)
    return {**tensors, "buffers": buffers} if buffers else tensors, state


def restore(built: Built, checkpoint: Checkpoint) -> Position:
    """Put a run that was just built where the checkpoint's was.

    Raises:
        UsageError: the checkpoint is of another task; the message names what differs.
    """
    state = checkpoint.state
    _check_same(state["task"], fingerprint(built), checkpoint)
    load_weights(built, {**checkpoint.tensors["model"], **extra_of(state)})
    load_buffers(built.model, checkpoint.tensors.get("buffers", {}))
    _load_optimizer(built, checkpoint)
    if built.scheduler is not None:
        built.scheduler.load_state_dict(decode(state["schedule"]))
    built.step.skipped = state["skipped"]
    if built.step.target.scaler is not None and state["scaler"] is not None:
        built.step.target.scaler.load_state_dict(decode(state["scaler"]))
    _load_random_states(checkpoint)
    return Position(**state["position"])


def _unsaved_buffers(built: Built) -> dict[str, torch.Tensor]:
    """Return the buffers that training has written to and that the state dict leaves out."""
    kept = built.model.state_dict(keep_vars=True)
    found = {}
    for name, buffer in built.model.named_buffers():
        first, version = built.buffers.get(name, (None, 0))
        if name not in kept and (buffer is not first or buffer._version != version):
            found[name] = buffer
    return found


def load_model(model: Any, weights: Mapping[str, Any]) -> None:
    """Put weights into a model; what is no tensor, and not among them, stays as it is."""
    own = {k: v for k, v in model.state_dict().items() if not isinstance(v, torch.Tensor)}
    model.load_state_dict({**own, **weights})


def extra_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return what modules gave by `get_extra_state`, by name, of a checkpoint's plain data."""
    return {name: decode(value) for name, value in state["extra"].items()}


def load_buffers(model: Any, buffers: Mapping[str, torch.Tensor]) -> None:
    """Put buffers into a model that no state dict has."""
    device = next((parameter.device for parameter in model.parameters()), None)
    for path, value in buffers.items():
        owner, _, name = path.rpartition(".")
        module = model.get_submodule(owner)
        old = module._buffers.get(name)
        there = value.to(device if old is None else old.device)
        module.register_buffer(name, there, persistent=False)


def load_weights(built: Built, weights: Mapping[str, Any]) -> None:
    """Put weights into the model, and where they are trained in another format there too."""
    load_model(built.model, weights)
    with torch.no_grad():
        for name, trained in built.weights.items():
            trained.copy_(weights[name])


def fingerprint(built: Built) -> dict[str, Any]:
    """Return what must be the same for a run to go on: what is learned, and from what."""
    task = built.task
    return {
        "samples": task.samples,
        "shuffle_buffer": task.shuffle_buffer if task.is_stream and task.shuffle else None,
        "logical_batch": task.logical_batch,
        "budget": None if task.budget is None else task.budget.digest,
        "accumulate": None if task.budget is None else task.accumulate,
        "seed": task.seed,
        "shuffle": task.shuffle,
        "drop_last": task.drop_last,
        "transform": _name_of(task.transform),
        "batch_transform": _name_of(task.batch_transform),
        "clip_norm": task.clip_norm,
        "clip_value": task.clip_value,
        "schedule_per": task.schedule_per,
        "weights": {
            name: list(value.shape)
            for name, value in built.model.state_dict().items()
            if isinstance(value, torch.Tensor)
        },
        "optimizer": type(built.optimizer).__name__,
        "hyperparameters": built.hyperparameters,
        "schedule": None if built.scheduler is None else type(built.scheduler).__name__,
        "schedule's values": built.schedule_values,
    }


def _name_of(function: Any) -> str | None:
    return None if function is None else getattr(function, "__qualname__", type(function).__name__)


def _check_same(theirs: Mapping[str, Any], ours: Mapping[str, Any], where: Checkpoint) -> None:
    for key in ours:
        if theirs.get(key) != ours[key]:
            old, new = theirs.get(key), ours[key]
            if isinstance(old, dict) and isinstance(new, dict):
                name = min(k for k in old | new if old.get(k) != new.get(k))
                key, old, new = f"{key} ({name})", old.get(name), new.get(name)
            raise UsageError(
                f"{where.path} is of another task: {key} was {old}, now it is {new}. Allowed: the "
                "same recipe with the same parameters; only its length may change, and nothing "
                "that follows from it."
            )


def _names(built: Built) -> dict[int, str]:
    trained = {**dict(built.model.named_parameters()), **built.weights}
    return {id(tensor): name for name, tensor in trained.items()}


def _optimizer(built: Built) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    names, tensors, scalars = _names(built), {}, {}
    for g, group in enumerate(built.optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            if name is None:
                # Of the loss, say: nothing else keeps it.
                name = f"group {g}, {i}"
                tensors[f"{name}/{_VALUE}"] = parameter.detach()
            for key, value in built.optimizer.state.get(parameter, {}).items():
                if hasattr(value, "__tensor_flatten__"):
                    for part in value.__tensor_flatten__()[0]:
                        tensors[f"{name}/{key}{_PART}{part}"] = getattr(value, part)
                elif isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo:
                    for part, content in _parts_of_sparse(value).items():
                        tensors[f"{name}/{key}{_PART}{part}"] = content
                elif isinstance(value, torch.Tensor):
                    tensors[f"{name}/{key}"] = value
                else:
                    scalars[f"{name}/{key}"] = encode(value, "the optimizer's state")
    groups = []
    for g, group in enumerate(built.optimizer.param_groups):
        kept = {}
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                tensors[f"group {g}/{key}"] = value
            elif key != "params":
                kept[key] = encode(value, f"the optimizer's {key}")
        groups.append(kept)
    return tensors, {"scalars": scalars, "groups": groups}


def _load_optimizer(built: Built, checkpoint: Checkpoint) -> None:
    names, saved = _names(built), checkpoint.state["optimizer"]
    tensors = checkpoint.tensors.get("optimizer", {})
    values = {**tensors, **{key: decode(value) for key, value in saved["scalars"].items()}}
    by_name: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        name, _, key = path.rpartition("/")
        by_name.setdefault(name, {})[key] = value
    state, groups, number = {}, [], 0
    formats: dict[int, torch.dtype] = {}
    for g, (group, kept) in enumerate(
        zip(built.optimizer.param_groups, saved["groups"], strict=True)
    ):
        indices = []
        for i, parameter in enumerate(group["params"]):
            name = names.get(id(parameter), f"group {g}, {i}")
            found = by_name.get(name, {})
            value = found.pop(_VALUE, None)
            if value is not None:
                with torch.no_grad():
                    parameter.copy_(value)
            weight = value if value is not None else checkpoint.tensors["model"].get(name)
            if weight is not None:
                formats[number] = weight.dtype
            if found:
                joined = _joined(built, parameter, found)
                state[number] = {key: _laid_like(parameter, v) for key, v in joined.items()}
            indices.append(number)
            number += 1
        numbers = {key: decode(value) for key, value in kept.items()}
        # How it computes is this run's plan, not what was saved.
        own = {key: group[key] for key in IMPLEMENTATION if key in group}
        groups.append({**numbers, **by_name.get(f"group {g}", {}), **own, "params": indices})
    built.optimizer.load_state_dict({"state": state, "param_groups": groups})
    _in_their_formats(built.optimizer, state, formats)


def _in_their_formats(
    optimizer: Any, saved: Mapping[int, Mapping[str, Any]], formats: Mapping[int, torch.dtype]
) -> None:
    """Put back what torch cast to the format of the parameter it belongs to.

    Args:
        optimizer: it has loaded `saved`.
        saved: number of a parameter -> its state, as it was saved.
        formats: number of a parameter -> its own format when that was saved. State of that format
            follows the parameter where it has another one now, as a repetition in float64 has.
    """
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, values in saved.items():
        parameter = parameters[number]
        own = optimizer.state[parameter]
        follows = formats.get(number, parameter.dtype)
        for key, value in values.items():
            now = own.get(key)
            if parameter.dtype != follows and getattr(value, "dtype", None) == follows:
                continue
            if type(value) is type(now) is torch.Tensor and now.dtype != value.dtype:
                own[key] = value.to(now.device)


def _laid_like(parameter: Any, value: Any) -> Any:
    # Fused kernels walk memory, not strides: parameter and state must lie alike.
    is_plain = type(value) is torch.Tensor and value.layout == torch.strided
    if not is_plain or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype).detach().copy_(value)


def _joined(built: Built, parameter: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of one parameter, its tensors of several parts put together."""
    joined = {key: value for key, value in found.items() if _PART not in key}
    parts: dict[str, dict[str, Any]] = {}
    for key in found.keys() - joined.keys():
        name, _, part = key.partition(_PART)
        parts.setdefault(name, {})[part] = found[key]
    for key, tensors in parts.items():
        if tensors.keys() == _SPARSE:
            joined[key] = torch.sparse_coo_tensor(
                tensors["indices"],
                tensors["values"],
                parameter.shape,
                is_coalesced=bool(tensors["is_coalesced"]),
                check_invariants=True,
            )
            continue
        make = built.step.target.empty_state
        empty: Any = None if make is None else make(parameter, key)
        if not hasattr(empty, "__tensor_flatten__"):
            raise UsageError(
                f"the checkpoint's optimizer keeps `{key}` in parts ({', '.join(sorted(tensors))}),"
                " this plan's does not. Allowed: the plan that the run was begun with."
            )
        names, context = empty.__tensor_flatten__()
        placed = {name: tensors[name].to(parameter.device) for name in names}
        joined[key] = type(empty).__tensor_unflatten__(
            placed, context, empty.size(), empty.stride()
        )
    return joined


def _parts_of_sparse(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what `_joined` makes the same sparse tensor of: momentum of sparse gradients."""
    return {
        "indices": tensor._indices(),
        "values": tensor._values(),
        "is_coalesced": torch.tensor(tensor.is_coalesced()),
    }


def _random_states() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    legacy = numpy.random.get_state(legacy=False)
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(legacy["state"]["key"].astype("int64")),
    }
    if torch.cuda.is_initialized():
        for number, device in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"cuda {number}"] = device
    rest = [legacy["state"]["pos"], legacy["has_gauss"], legacy["gauss"]]
    return tensors, {
        "python": encode(random.getstate(), "Python's random"),
        "numpy": encode(rest, "numpy.random"),
    }


def _load_random_states(checkpoint: Checkpoint) -> None:
    tensors, others = checkpoint.tensors["random"], checkpoint.state["random"]
    random.setstate(decode(others["python"]))
    position, has_gauss, gauss = decode(others["numpy"])
    key = tensors["numpy"].numpy().astype("uint32")
    numpy.random.set_state(("MT19937", key, position, has_gauss, gauss))
    torch.set_rng_state(tensors["torch"])
    devices = [tensors[f"cuda {n}"] for n in range(len(tensors)) if f"cuda {n}" in tensors]
    if devices and torch.cuda.is_available():
        # A checkpoint may come from a machine with more of them.
        torch.cuda.set_rng_state_all(devices[: torch.cuda.device_count()])
