"""`run_first`: what an optimizer's closure computes, before the update that follows it begins."""

from typing import Any

import torch

from hotlap import compat

_of_all = compat.find_optional("_global_optimizer_pre_hooks")
"""Hooks that are called before the step of every optimizer."""


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
    # A hook that is called before the closure may prepare what that computes; ours do not.
    own = getattr(optimizer, "_optimizer_step_pre_hooks", None)
    if own is None or _of_all is None:
        return False
    hooks = (*own.values(), *_of_all.values())
    return all(getattr(hook, "__module__", "").startswith("hotlap.") for hook in hooks)
