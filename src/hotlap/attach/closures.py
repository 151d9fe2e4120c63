"""`run_first`: what an optimizer's closure computes, before the update that follows it begins."""

from typing import Any

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks


def run_first(
    optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Run the closure that `step` was given; return arguments that make `step` go on from there.

    Forward, backward and zeroing are then told in the order of a loop without a closure. That holds
    for optimizers that begin with a single call of it, as all of torch's but LBFGS do.

    Args:
        optimizer: whose step was called.
        args: of that call.
        kwargs: likewise.
    """
    closure = kwargs.get("closure", args[0] if args else None)
    if not callable(closure) or not _calls_it_once(optimizer):
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    return (), {"closure": lambda: loss}


def _calls_it_once(optimizer: Any) -> bool:
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind is torch.optim.LBFGS:
        return False
    # A hook that is called before the closure may prepare what that computes.
    return not (optimizer._optimizer_step_pre_hooks or _global_optimizer_pre_hooks)
