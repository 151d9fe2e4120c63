"""Captures an optimizer for a checkpoint, and loads it: groups, and state by parameter name."""

from collections.abc import Mapping
from typing import Any

import torch

from hotlap.checkpoint.codec import decode, encode
from hotlap.checkpoint.read import Checkpoint
from hotlap.distributed.shares import is_share
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.rank_parts import VALUE, group_name, local_part
from hotlap.errors import UsageError
from hotlap.trial.hyperparameters import IMPLEMENTATION

PART = "#"
"""Between the name of a state and that of one of its parts."""

_SPARSE = {"indices", "values", "is_coalesced"}
"""Parts of a sparse tensor."""


def names_by_id(built: BuiltRun) -> dict[int, str]:
    """Return the id of each tensor that may be trained -> its name in the model."""
    trained = {**dict(built.model.named_parameters()), **built.weights}
    return {id(tensor): name for name, tensor in trained.items()}


def trained_names(built: BuiltRun) -> set[str]:
    """Return the names of the weights that the optimizer changes."""
    names = names_by_id(built)
    groups = built.optimizer.param_groups
    return {names[id(p)] for group in groups for p in group["params"] if id(p) in names}


def capture_optimizer(built: BuiltRun) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the optimizer's tensors by `parameter/key`, and everything else as plain data."""
    names, tensors, scalars = names_by_id(built), {}, {}
    for g, group in enumerate(built.optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            name = names.get(id(parameter))
            if name is None:
                # Of the loss, say: nothing else keeps it.
                name = f"group {g}, {i}"
                tensors[f"{name}/{VALUE}"] = parameter.detach()
            for key, value in built.optimizer.state.get(parameter, {}).items():
                if is_share(value):
                    tensors[f"{name}/{key}"] = value
                elif hasattr(value, "__tensor_flatten__"):
                    for part in value.__tensor_flatten__()[0]:
                        tensors[f"{name}/{key}{PART}{part}"] = getattr(value, part)
                elif isinstance(value, torch.Tensor) and value.layout == torch.sparse_coo:
                    for part, content in _parts_of_sparse(value).items():
                        tensors[f"{name}/{key}{PART}{part}"] = content
                elif isinstance(value, torch.Tensor):
                    tensors[f"{name}/{key}"] = value
                else:
                    scalars[f"{name}/{key}"] = encode(value, "the optimizer's state")
    groups = []
    for g, group in enumerate(built.optimizer.param_groups):
        kept = {}
        for key, value in group.items():
            if isinstance(value, torch.Tensor):
                tensors[group_name(g, key)] = value
            elif key != "params":
                kept[key] = encode(value, f"the optimizer's {key}")
        groups.append(kept)
    plain: dict[str, Any] = {"scalars": scalars, "groups": groups}
    others = {k: v for k, v in built.optimizer.state.items() if not isinstance(k, torch.Tensor)}
    if others:
        plain["others"] = encode(others, "the optimizer's state that belongs to no parameter")
    return tensors, plain


def load_optimizer(built: BuiltRun, checkpoint: Checkpoint) -> None:
    """Put groups and states into an optimizer that was just made.

    Raises:
        UsageError: the checkpoint keeps a state in parts, and this plan's optimizer does not.
    """
    names, saved = names_by_id(built), checkpoint.state["optimizer"]
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
            value = found.pop(VALUE, None)
            if value is not None:
                with torch.no_grad():
                    parameter.copy_(value)
            weight = value if value is not None else checkpoint.tensors["model"].get(name)
            if weight is not None:
                formats[number] = weight.dtype
            if found and (built.sharding is None or built.sharding.keeps(parameter)):
                joined = _join_state(built, parameter, found)
                state[number] = {key: _laid_like(parameter, v) for key, v in joined.items()}
            indices.append(number)
            number += 1
        numbers = {key: decode(value) for key, value in kept.items()}
        # How it computes is this run's plan, not what was saved.
        own = {key: group[key] for key in IMPLEMENTATION if key in group}
        groups.append({**numbers, **by_name.get(f"group {g}", {}), **own, "params": indices})
    built.optimizer.load_state_dict({"state": state, "param_groups": groups})
    if "others" in saved:
        built.optimizer.state.update(decode(saved["others"]))
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
    if is_share(parameter):
        return local_part(parameter, value)
    return torch.empty_like(parameter, dtype=value.dtype).detach().copy_(value)


def _join_state(built: BuiltRun, parameter: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of one parameter, its tensors of several parts put together."""
    joined = {key: value for key, value in found.items() if PART not in key}
    parts: dict[str, dict[str, Any]] = {}
    for key in found.keys() - joined.keys():
        name, _, part = key.partition(PART)
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
                f"the checkpoint's optimizer stores `{key}` as {', '.join(sorted(tensors))}, "
                "another format than that of this plan's optimizer. Pass the plan that the run was "
                "started with to --plan; `run.json` in the run's folder shows its techniques."
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
