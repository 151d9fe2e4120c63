"""Turns a rank's shares (`DTensor`) into parts of a checkpoint, and whole tensors into shares."""

from collections.abc import Mapping
from typing import Any

import torch

from hotlap.checkpoint.layout import Tensors
from hotlap.checkpoint.shards import Piece
from hotlap.distributed.shares import is_share, share_like
from hotlap.engine.build import BuiltRun

VALUE = "its value"
"""Name of a parameter itself, where it is not the model's, among the parts of its state."""


def mark_parts(built: BuiltRun, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Tensors:
    """Return a run's tensors, with a `Piece` for each of which this rank alone holds a part.

    Args:
        built: the run.
        tensors: of this rank, by file and name; shares among them.
    """
    sharding = built.sharding
    if sharding is None:
        return tensors
    if sharding.shares_parameters:
        return {file: _parts_of(group) for file, group in tensors.items()}
    # The state that this rank has is that of the parameters which it owns. All else all ranks have:
    # parameters themselves, and what groups hold, such as a learning rate that is a tensor.
    groups = enumerate(built.optimizer.param_groups)
    whole = {group_name(number, key) for number, group in groups for key in group}
    own = {
        name: each
        if name.endswith(f"/{VALUE}") or name in whole
        else Piece(each, tuple(each.shape), (0,) * each.dim())
        for name, each in tensors["optimizer"].items()
    }
    return {**tensors, "optimizer": own}


def group_name(number: int, key: str) -> str:
    """Return the name of a tensor that a group of the optimizer holds, not one of its parameters.

    >>> group_name(0, "lr")
    'group 0/lr'
    """
    return f"group {number}/{key}"


def local_part(own: Any, whole: Any) -> Any:
    """Return what this rank keeps of a whole tensor that belongs to a parameter like `own`."""
    is_alike = is_share(own) and isinstance(whole, torch.Tensor) and whole.shape == own.shape
    return share_like(own, whole) if is_alike else whole


def _parts_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor | Piece]:
    found: dict[str, torch.Tensor | Piece] = {}
    for name, tensor in tensors.items():
        part = _part_of(tensor) if is_share(tensor) else tensor
        if part is not None:
            found[name] = part
    return found


def _part_of(share: Any) -> Piece | None:
    """Return a share as a part of its tensor, None if another group of ranks gives the same."""
    mesh, begin = share.device_mesh, [0] * share.dim()
    for dimension, placement in enumerate(share.placements):
        number = mesh.get_local_rank(dimension)
        if placement.is_replicate():
            if number:
                return None
            continue
        # Dealt as `torch.chunk` does: the last ranks may get fewer rows, or none.
        rows = share.shape[placement.dim]
        each = -(-rows // mesh.size(dimension))
        begin[placement.dim] = min(rows, number * each)
    return Piece(share.detach().to_local(), tuple(share.shape), tuple(begin))
