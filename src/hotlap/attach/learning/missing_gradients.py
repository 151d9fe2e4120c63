"""Parameters that an optimizer holds, and that no backward gives a gradient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.trace import frames
from hotlap.trace.learning import WithoutGradient

_STEPS = 64
"""First steps of each optimizer that are looked at."""
_VALUES = 4
"""Of these, how many are looked at for gradients that are zero."""


@dataclass
class _Held:
    """Parameters of one optimizer without a gradient at any step so far."""

    optimizer: Any
    where: str
    without: set[int]
    steps: int = 0


class MissingGradients:
    """Looks at the first steps of each optimizer."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        """By the identity of the optimizer, which is kept."""
        self.seen: set[int] = set()
        """Identities of the optimizers that need not be looked at any more."""
        self.looked = self.empty = 0
        """Steps that were looked at for the values of gradients; of these, without any, or with
        zeros only."""

    @property
    def only_optimizer(self) -> Any:
        """The one optimizer that has been stepped, None before the first step or of several."""
        return next(iter(self._held.values())).optimizer if len(self._held) == 1 else None

    def step_begins(self, optimizer: Any) -> None:
        """Look for parameters that no backward has given a gradient."""
        without = {id(p) for p in tensors_held_by(optimizer) if p.requires_grad and p.grad is None}
        held = self._held.get(id(optimizer))
        if held is None:
            where = frames.location_of(frames.caller())
            held = self._held[id(optimizer)] = _Held(optimizer, where, without)
        if held.steps < _VALUES:
            self.looked += 1
            self.empty += not has_gradients(optimizer, unread=True)
        held.without &= without
        held.steps += 1
        if held.steps == _STEPS:
            self.seen.add(id(optimizer))

    def facts(self, roots: Sequence[Any]) -> tuple[WithoutGradient, ...]:
        """Return what was seen.

        Args:
            roots: the trained modules, which know the names of parameters.
        """
        found = (_facts_of(held, roots) for held in self._held.values())
        return tuple(each for each in found if each is not None)


def has_gradients(optimizer: Any, *, unread: bool) -> bool:
    """Return whether a gradient that an optimizer would use has numbers other than 0.

    Args:
        optimizer: whose parameters are looked at.
        unread: what is said of gradients that are on a device, sparse or of a class of their own:
            they are not read.
    """
    gradients = (parameter.grad for parameter in tensors_held_by(optimizer))
    return any(
        bool(torch.count_nonzero(each)) if _is_readable(each) else unread
        for each in gradients
        if each is not None
    )


def _is_readable(gradient: Any) -> bool:
    is_plain = type(gradient) is torch.Tensor and gradient.layout == torch.strided
    return is_plain and gradient.is_cpu


def tensors_held_by(optimizer: Any) -> list[Any]:
    """Return everything that an optimizer holds."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def _facts_of(held: _Held, roots: Sequence[Any]) -> WithoutGradient | None:
    # Of what is used later the optimizer has a state, or there is a gradient by now.
    later = {id(p) for p in tensors_held_by(held.optimizer) if p.grad is not None}
    without = held.without - later - {id(p) for p in getattr(held.optimizer, "state", ())}
    names = [
        f"{type(root).__name__}.{name}" if len(roots) > 1 else name
        for root in roots
        for name, each in root.named_parameters()
        if id(each) in without
    ]
    if not names:
        return None
    of = len(tensors_held_by(held.optimizer))
    return WithoutGradient(held.where, len(names), of, held.steps, tuple(names[:3]))
