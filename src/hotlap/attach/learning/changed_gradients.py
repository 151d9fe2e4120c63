"""Whether a script changes gradients itself, after the last backward pass of a step."""

from typing import Any

import torch

from hotlap.attach.listener import mute_listener
from hotlap.distributed.shares import is_share

_STEPS = 4
"""Steps that are looked at: the loop does the same in each."""


class ChangedGradients:
    """Compares one gradient as backward has left it with what clipping, a scaler or a step finds.

    Only on the CPU: on another device the comparison would have to be waited for.
    """

    def __init__(self) -> None:
        self.is_open = True
        """True while there is something to compare."""
        self._kept: tuple[Any, torch.Tensor] | None = None
        """A parameter, and a copy of its gradient after the newest backward."""
        self._steps = 0
        self.compared = self.changed = 0

    def backward_ends(self, optimizer: Any) -> None:
        """Keep the smallest gradient of an optimizer."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        known = [each for each in parameters if _is_comparable(each.grad)]
        self._kept = None
        if known:
            smallest = min(known, key=lambda each: each.grad.numel())
            with mute_listener(), torch.no_grad():
                self._kept = smallest, smallest.grad.clone()

    def gradients_used(self) -> None:
        """Clipping or a scaler is about to change the gradients."""
        kept, self._kept = self._kept, None
        if kept is None:
            return
        parameter, before = kept
        with mute_listener(), torch.no_grad():
            # Zeros are the same when they are divided, and what is no number differs from itself.
            if before.any() and before.isfinite().all():
                self.compared += 1
                self.changed += parameter.grad is None or not torch.equal(parameter.grad, before)

    def step_begins(self) -> None:
        """A step is about to use the gradients."""
        self.gradients_used()
        self._steps += 1
        self.is_open = self._steps < _STEPS


def _is_comparable(gradient: Any) -> bool:
    return (
        gradient is not None
        and gradient.device.type == "cpu"
        and gradient.layout is torch.strided
        and not is_share(gradient)
    )
