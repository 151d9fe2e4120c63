"""Sums zeros for sharded parameters that got no gradient on this rank, with any torch from 2.11 on.

Without, a rank whose step leaves out a parameter would wait forever for ranks whose steps use it.
"""

from functools import wraps
from typing import Any

import torch
from torch.distributed import fsdp

from hotlap.compat import find_optional

_NEW = "set_reduce_scatter_unused_params"
"""torch 2.13 has it."""


def can_sum() -> bool:
    """Return whether this torch can be told to."""
    names = ("FSDPParamGroup.post_backward", "FSDPModule._get_fsdp_state")
    return hasattr(fsdp.FSDPModule, _NEW) or all(find_optional(name) for name in names)


def sum_zeros(model: Any) -> None:
    """Have the gradients of a sharded model summed so."""
    if hasattr(model, _NEW):
        getattr(model, _NEW)(True)
        return
    for module in model.modules():
        group = module._get_fsdp_state()._fsdp_param_group if _is_shard(module) else None
        # One that holds no parameter of its own has no group.
        if group is not None:
            _fill(group)


def _is_shard(module: Any) -> bool:
    return isinstance(module, fsdp.FSDPModule)


def _fill(group: Any) -> None:
    post_backward = group.post_backward

    @wraps(post_backward)
    def with_zeros(*unused: Any) -> None:
        for each in group.fsdp_params if group.reduce_grads else []:
            # A group that was never gathered has no whole parameters yet.
            whole = getattr(each, "_unsharded_param", None)
            if whole is None or not whole.requires_grad:
                continue
            if whole.grad is None and each.unsharded_accumulated_grad is None:
                whole.grad = torch.zeros_like(whole)
        post_backward(*unused)

    group.post_backward = with_zeros
