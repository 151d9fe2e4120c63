"""Whether a script changes gradients itself, after the last backward pass of a step."""

from typing import Any

import torch

from hotlap.attach.listener import mute_listener
from hotlap.device import process_settings
from hotlap.distributed.shares import is_share

_STEPS = 4
"""Steps that are looked at: the loop does the same in each."""


class ChangedGradients:
    """Compares one gradient as backward has left it with what clipping, a scaler or a step finds.

    On another device nothing is waited for: what a comparison gives is read in `counts`.
    """

    def __init__(self) -> None:
        self.is_open = True
        """True while there is something to compare."""
        self._kept: tuple[Any, torch.Tensor] | None = None
        """A parameter, and a copy of its gradient after the newest backward."""
        self._steps = 0
        self._compared = self._changed = 0
        self._unread: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Of each that was compared: whether it tells anything, and whether it was changed."""

    def counts(self) -> tuple[int, int]:
        """Return how many gradients were compared, and how many of these were changed."""
        for tells, differs in self._unread:
            if tells.item():
                self._compared += 1
                self._changed += bool(differs.item())
        self._unread.clear()
        return self._compared, self._changed

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
        if kept is None or process_settings.is_capturing():
            return
        parameter, before = kept
        with mute_listener(), torch.no_grad():
            # Zeros are the same when they are divided, and what is no number differs from itself.
            tells, gradient = before.any() & before.isfinite().all(), parameter.grad
            is_other = gradient is None or gradient.shape != before.shape
            differs = torch.ones_like(tells) if is_other else (gradient != before).any()
            self._unread.append((tells, differs))

    def step_begins(self) -> None:
        """A step is about to use the gradients."""
        self.gradients_used()
        self._steps += 1
        self.is_open = self._steps < _STEPS


def _is_comparable(gradient: Any) -> bool:
    return (
        gradient is not None
        and not gradient.is_meta
        and not (gradient.is_cuda and torch.cuda.is_current_stream_capturing())
        and gradient.layout is torch.strided
        and not is_share(gradient)
    )
