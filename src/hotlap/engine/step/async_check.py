"""`AsyncCheckStep`: checks that the loss is finite while the device computes the backward."""

import math
import weakref
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.engine.step.update import Step


class AsyncCheckStep(Step):
    """Leaves an update out by one host check, as `Step`, but does not drain the device for it.

    The loss is copied to the host on a stream of its own, behind the forward and not behind the
    backward, which is queued meanwhile. So the host has its answer, and queues the update, before
    the device gets there. The norm of clipped gradients is known only after the backward: it is
    read as `Step` reads it.

    Args:
        arguments: see `Step`.
        device: a CUDA device.
        options: see `Step`; `check_finite` is what this class is for.
    """

    def __init__(self, *arguments: Any, device: Cuda, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._device = device
        self._stream = device.new_stream()
        self._reads: list[tuple[torch.Tensor, Any]] = []
        """(sum and count on the host, event behind their copy) of each micro-batch."""
        self._also_clips = self._clips
        # Whether an update is left out is asked where gradients are clipped, not before.
        self.check_finite, self._clips = False, True
        self.loss = _watch_loss(self.loss, weakref.ref(self))

    def try_out(self, batch: Any) -> None:
        super().try_out(batch)
        self._reads.clear()

    def roll_back(self) -> None:
        self._reads.clear()
        super().roll_back()

    def read(self, value: Any) -> None:
        """Begin to read what a loss gave."""
        self._reads.append(self._begin_to_read(*_parts(value)))

    def _begin_to_read(self, total: torch.Tensor, count: Any) -> tuple[torch.Tensor, Any]:
        device = self._device
        here = device.allocate_pinned(8).view(torch.float32)
        here[1] = 1.0 if isinstance(count, torch.Tensor) else float(count)
        known = device.mark()
        with device.use_stream(self._stream):
            device.wait(known)
            for place, value in enumerate((total, count)):
                if isinstance(value, torch.Tensor):
                    value = value.detach()
                    device.hand_over(value)
                    device.copy(here[place], value.reshape(()).to(torch.float32))
            return here, device.mark()

    def _check_mean(self, samples: int, batch: Any) -> None:
        super()._check_mean(samples, batch)
        self._reads.clear()

    def _clip(self) -> bool:
        reads, self._reads = self._reads, []
        totals: list[list[float]] = []
        for here, copied in reads:
            self._device.wait_on_host(copied)
            totals.append(here.tolist())
        total, count = (sum(column) for column in zip(*totals, strict=True))
        if count == 0 or not math.isfinite(total / count):
            return False
        if not self._also_clips:
            return True
        norm = self._clip_gradients()
        return norm is None or math.isfinite(float(norm))


def _watch_loss(loss: Any, held: Any) -> Any:
    """Return a loss that lets the step read it; `held` is a weak reference to that step.

    A step that held itself would keep the device's memory until Python looks for cycles.
    """

    def compute_loss(model: Any, batch: Any) -> Any:
        value = loss(model, batch)
        step = held()
        if step is not None and torch.is_grad_enabled():
            step.read(value)
        return value

    return compute_loss


def _parts(value: Any) -> tuple[torch.Tensor, Any]:
    if not isinstance(value, tuple):
        return value, 1
    total, count = value
    return total, 1 if count is None else count
