"""A rank's shares of tensors (`DTensor`): recognized, made of whole tensors, and gathered.

A share is a `DTensor`, whose own module is imported only by who makes one.
"""

from typing import Any

import torch


def is_share(value: Any) -> bool:
    """Return whether a tensor is this rank's share of one."""
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")


def local_of(value: Any) -> Any:
    """Return what this rank holds of a tensor."""
    return value.to_local() if is_share(value) else value


def whole_of(share: Any) -> torch.Tensor:
    """Return the whole tensor in the host's memory; every rank calls this at once."""
    return share.detach().full_tensor().cpu()


def share_like(own: Any, whole: torch.Tensor) -> Any:
    """Return this rank's share of a whole tensor, which is laid out as another share is.

    Args:
        own: the share, of the same shape over all ranks.
        whole: the same on every rank.
    """
    from torch.distributed.tensor import distribute_tensor

    # Without a source nothing is sent: each rank has the whole and takes its part of it.
    return distribute_tensor(
        whole.detach().to(own.device), own.device_mesh, own.placements, src_data_rank=None
    )
