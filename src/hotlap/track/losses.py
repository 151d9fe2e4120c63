"""`DeferredLosses`: losses of steps, read without waiting for the device that computes them."""

import time
from collections.abc import Callable
from typing import Any

from hotlap.device.accelerator import Cuda, Device

_MOST = 64
"""Losses that are read from a device at once."""
_LONGEST_S = 1.0
"""Seconds after which fewer are, too."""


class DeferredLosses:
    """Takes the loss of each step, and gives its number once it is there.

    On a CUDA device losses are gathered into one tensor, copied into pinned memory behind whatever
    is queued, and read when their event has passed. On another device they are read by `flush`, to
    be called where the device was waited for anyway.

    Args:
        device: where the losses are.
        give: called with (step, epoch, seconds, loss), in the order of the steps.
        seconds: returns the time that a step's record gets.
    """

    def __init__(
        self,
        device: Device,
        give: Callable[[int, int | None, float, float], None],
        seconds: Callable[[], float],
    ) -> None:
        self._device, self._give, self._seconds = device, give, seconds
        self._waiting: list[tuple[int, int | None, float, Any]] = []
        self._copied: list[tuple[list[tuple[int, int | None, float, Any]], Any, Any]] = []
        self._sent_at = time.monotonic()

    def add(self, step: int, epoch: int | None, loss: Any) -> None:
        """Take a loss.

        Args:
            step: see `Record.step`.
            epoch: see `Record.epoch`.
            loss: a number, or a scalar tensor that nothing writes to afterwards.
        """
        if not self._device.has_own_memory:
            self._give(step, epoch, self._seconds(), float(loss))
            return
        self._waiting.append((step, epoch, self._seconds(), loss))
        if not isinstance(self._device, Cuda):
            return
        now = time.monotonic()
        if len(self._waiting) >= _MOST or now - self._sent_at > _LONGEST_S:
            self._send(self._device)
            self._sent_at = now
            self._take_arrived(self._device)

    def flush(self) -> None:
        """Give all losses; waits for the device."""
        rows = [row for sent, _, _ in self._copied for row in sent] + self._waiting
        self._copied, self._waiting = [], []
        if not rows:
            return
        for row, loss in zip(rows, _stacked(rows).tolist(), strict=True):
            self._give(*row[:3], loss)

    def _send(self, device: Cuda) -> None:
        rows, self._waiting = self._waiting, []
        losses = _stacked(rows)
        here = device.allocate_pinned(losses.numel() * losses.element_size()).view(losses.dtype)
        device.copy(here, losses)
        self._copied.append((rows, here, device.mark()))

    def _take_arrived(self, device: Cuda) -> None:
        while self._copied and device.has_passed(self._copied[0][2]):
            rows, here, _ = self._copied.pop(0)
            for row, loss in zip(rows, here.tolist(), strict=True):
                self._give(*row[:3], loss)


def _stacked(rows: list[tuple[int, int | None, float, Any]]) -> Any:
    """Return the losses as one tensor, in the format that holds each of them."""
    import torch

    scalars = [loss.detach().reshape(()) for *_, loss in rows]
    kinds = {scalar.dtype for scalar in scalars}
    if len(kinds) > 1:
        scalars = [scalar.to(torch.float32) for scalar in scalars]
    return torch.stack(scalars)
