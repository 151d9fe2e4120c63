"""`AsyncDecision`: the host checks the loss while the device computes the backward."""

import math
from typing import Any

import torch

from hotlap.device.accelerator import Cuda
from hotlap.engine.step.update import Update


class AsyncDecision:
    """Leaves an update out by one host check, as `HostDecision`, but does not drain the device.

    The loss is copied to the host on a stream of its own, behind the forward and not behind the
    backward, which is queued meanwhile. So the host has its answer, and queues the update, before
    the device gets there. The norm of clipped gradients is known only after the backward: it is
    read as `HostDecision` reads it.

    Args:
        update: what is taken or left out.
        device: a CUDA device.
    """

    def __init__(self, update: Update, device: Cuda) -> None:
        self.skipped = 0
        """Updates that were left out."""
        self._update, self._device = update, device
        self._stream = device.new_stream()
        self._reads: list[tuple[torch.Tensor, Any]] = []
        """(sum and count on the host, event behind their copy) of each micro-batch."""

    def read(self, total: torch.Tensor, count: Any) -> None:
        """Begin to read what the loss of a micro-batch gave, see `Passes.watch`."""
        device = self._device
        here = device.allocate_pinned(8).view(torch.float32)
        count = 1 if count is None else count
        here[1] = 1.0 if isinstance(count, torch.Tensor) else float(count)
        on_device = torch.device(device.name).type
        known = device.mark()
        with device.use_stream(self._stream):
            device.wait(known)
            for place, value in enumerate((total, count)):
                if isinstance(value, torch.Tensor) and value.device.type != on_device:
                    # A count may be the host's, as the `batch_sizes` of packed sequences are.
                    here[place] = float(value)
                elif isinstance(value, torch.Tensor):
                    value = value.detach()
                    device.hand_over(value)
                    device.copy(here[place], value.reshape(()).to(torch.float32))
            self._reads.append((here, device.mark()))

    def decide(self, loss: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Take the update or leave it out; return the loss, and whether it was taken."""
        self._update.unscale()
        is_taken = self._update.clip_and_apply() if self._is_finite() else self._update.leave_out()
        if not is_taken:
            self.skipped += 1
        return loss, is_taken

    def report(self, decided: Any) -> tuple[torch.Tensor, bool]:
        """Return (loss, is taken), and do what follows a step that was taken."""
        if decided[1]:
            for work in self._update.target.after_step:
                work()
        return decided

    def forget(self) -> None:
        """Forget a step that failed."""
        self._reads.clear()

    def _is_finite(self) -> bool:
        reads, self._reads = self._reads, []
        totals: list[list[float]] = []
        for here, copied in reads:
            self._device.wait_on_host(copied)
            totals.append(here.tolist())
        total, count = (sum(column) for column in zip(*totals, strict=True))
        return count != 0 and math.isfinite(total / count)
