"""Counts denormal numbers in the optimizers' state: a CPU computes slowly with them."""

from collections.abc import Iterable
from typing import Any

MANY = 1000
"""As many as are worth a trial."""
_LOOKED_AT = 2**20
"""Elements of a tensor that are looked at, at most; the others are taken to be like them."""


def count_denormals(optimizers: Iterable[Any]) -> int:
    """Return about how many elements of the optimizers' state on the CPU are denormal."""
    state = [
        value
        for optimizer in optimizers
        for row in optimizer.state.values()
        for value in row.values()
    ]
    return sum(_count(value) for value in state if _is_on_cpu(value))


def _is_on_cpu(value: Any) -> bool:
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and value.is_floating_point()
        and value.numel() > 1
    )


def _count(tensor: Any) -> int:
    import torch

    from hotlap.distributed.shares import local_of

    # A sum over a sharded tensor would be a collective, which only one rank calls.
    flat = local_of(tensor.detach()).flatten()
    every = -(-len(flat) // _LOOKED_AT)
    looked_at = flat[::every]
    tiny = torch.finfo(tensor.dtype).tiny
    return every * int(((looked_at != 0) & (looked_at.abs() < tiny)).sum())
