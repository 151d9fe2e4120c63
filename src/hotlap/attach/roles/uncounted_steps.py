"""Scripts whose steps cannot be counted; `HandUpdates` notices those without an optimizer."""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

CAPTURED = (
    "the script captures its training step as a CUDA graph, and replaying a graph calls no "
    "optimizer, so its steps cannot be counted. Expected: a call of `optimizer.step()` in every "
    "step. Remove the graph; in a recipe the technique `cuda_graph` makes one."
)
_LOOKS = (3, 10, 20, 40)
"""Backward passes before which parameters are looked at."""
_ELEMENTS = 64
"""Of each parameter, spread over it."""

_Seen = list[tuple["weakref.ref[Any]", torch.Tensor]]


def words_for(where: str) -> str:
    """Return why a script is refused that goes backward there, and updates by hand."""
    return (
        f"the script changes its parameters after the backward pass{f' at {where}' * bool(where)}, "
        "and no optimizer of torch steps, or it does so inside compiled code, so its steps cannot "
        "be counted. Expected: a call of `optimizer.step()` in every step. Use `torch.optim.SGD`, "
        "derive its own optimizer from `torch.optim.Optimizer`, or step outside compiled code."
    )


class HandUpdates:
    """Looks whether parameters change between backward passes while no optimizer steps.

    Gradients may be accumulated for long before the first step: only parameters that have changed
    between all looks are updated by the script itself.
    """

    def __init__(self) -> None:
        self._backwards = 0
        self._seen: _Seen = []
        self._changes = 0

    def backward_begins(self, modules: Sequence[Any]) -> bool:
        """Return whether parameters are known to be updated without an optimizer.

        Args:
            modules: called in training so far.
        """
        self._backwards += 1
        if self._backwards not in _LOOKS:
            return False
        try:
            if self._seen and _have_changed(self._seen):
                self._changes += 1
            self._seen = _look(modules)
        except Exception:
            # Parameters of a class or layout of their own: the script goes on as if nobody looked.
            self._seen = []
        return self._changes == len(_LOOKS) - 1


@torch.no_grad()
def _look(modules: Sequence[Any]) -> _Seen:
    parameters = {id(each): each for module in modules for each in module.parameters()}
    return [
        (weakref.ref(each), _some_of(each))
        for each in parameters.values()
        if type(each) is torch.nn.Parameter and each.requires_grad and each.numel()
    ]


@torch.no_grad()
def _have_changed(seen: _Seen) -> bool:
    """Return whether most of these have: a layer may scale its weights in the forward."""
    changed = 0
    for kept, before in seen:
        parameter = kept()
        if parameter is not None and parameter.numel() >= before.numel():
            after = _some_of(parameter)
            is_same = after.shape != before.shape or after.allclose(before, 0, 0, equal_nan=True)
            changed += not is_same
    return 2 * changed > len(seen)


def _some_of(parameter: torch.Tensor) -> torch.Tensor:
    every = max(1, parameter.numel() // _ELEMENTS)
    return parameter.detach().reshape(-1)[::every].cpu().clone()
