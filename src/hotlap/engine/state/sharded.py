"""What ranks share, in a checkpoint: shares are put together, whole tensors shared again."""

from collections.abc import Mapping
from typing import Any

import torch

from hotlap.distributed.shares import is_share, share_like, whole_of
from hotlap.engine.build import BuiltRun

Tensors = dict[str, dict[str, torch.Tensor]]


def gather(built: BuiltRun, tensors: Tensors, scalars: dict[str, Any]) -> Tensors:
    """Return a run's tensors as one process would hold them, on the first rank.

    Every rank calls this at once. Where ranks share nothing, nothing is done.

    Args:
        built: the run.
        tensors: of this rank, by file and name; shares among them.
        scalars: the optimizer's state that is no tensor, by name; on the first rank, that of the
            other ranks' parameters is added.
    """
    sharding = built.sharding
    if sharding is None:
        return tensors
    if sharding.shares_parameters:
        return {file: _put_together(built, group) for file, group in tensors.items()}
    for theirs in built.reduce.gather(scalars):
        scalars.update(theirs)
    return {**tensors, "optimizer": _collect(built, tensors["optimizer"])}


def local_part(own: Any, whole: Any) -> Any:
    """Return what this rank keeps of a whole tensor that belongs to a parameter like `own`."""
    is_alike = is_share(own) and isinstance(whole, torch.Tensor) and whole.shape == own.shape
    return share_like(own, whole) if is_alike else whole


def _put_together(built: BuiltRun, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in tensors.items():
        value = whole_of(tensor) if is_share(tensor) else tensor
        if built.reduce.rank == 0:
            found[name] = value
    return found


def _collect(built: BuiltRun, own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors of all ranks by name, each from the first rank that has it."""
    reduce, found = built.reduce, dict(own)
    listed = reduce.gather(
        {name: [str(each.dtype), list(each.shape), each.device.type] for name, each in own.items()}
    )
    known: set[str] = set()
    for rank, theirs in enumerate(listed):
        for name, (dtype, shape, device) in theirs.items():
            if name in known:
                continue
            known.add(name)
            if rank == 0:
                continue
            if rank == reduce.rank:
                tensor = own[name].detach().contiguous()
            else:
                kind = getattr(torch, dtype.removeprefix("torch."))
                tensor = torch.empty(shape, dtype=kind, device=device)
            reduce.copy_tensors([tensor], rank)
            if reduce.rank == 0:
                found[name] = tensor.cpu()
    return found
