"""Loads a checkpoint's weights, buffers and extra state; finds buffers a state dict leaves out."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch

from hotlap.checkpoint.codec import decode
from hotlap.engine.build import BuiltRun
from hotlap.engine.state.rank_parts import local_part


def unsaved_buffers(built: BuiltRun) -> dict[str, torch.Tensor]:
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
    now = model.state_dict()
    own = {k: v for k, v in now.items() if not isinstance(v, torch.Tensor)}
    given = {k: local_part(now[k], v) if k in now else v for k, v in weights.items()}
    model.load_state_dict(with_versions({**own, **given}, versions_of(now)))


def versions_of(state: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what torch keeps beside a model's state dict: path of a module -> its version."""
    return getattr(state, "_metadata", None)


def with_versions(
    weights: Mapping[str, Any], versions: Mapping[str, Any] | None
) -> OrderedDict[str, Any]:
    """Return weights as `load_state_dict` takes them from the model that they are of.

    Without versions, modules believe weights to be older than all versions: torch's own add what
    they lack by now, and others refuse them.
    """
    found = OrderedDict(weights)
    if versions is not None:
        vars(found)["_metadata"] = versions
    return found


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


def load_weights(built: BuiltRun, weights: Mapping[str, Any]) -> None:
    """Put weights into the model, and where they are trained in another format there too."""
    load_model(built.model, weights)
    with torch.no_grad():
        for name, trained in built.weights.items():
            trained.copy_(weights[name])
