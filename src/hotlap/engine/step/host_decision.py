"""`HostDecision`: the host reads the loss, and decides whether the update is taken."""

import math
from typing import Any

import torch

from hotlap.engine.step.update import Update


class HostDecision:
    """Leaves an update out where the loss, or the norm that is clipped, is not finite.

    Args:
        update: what is taken or left out; its `check_finite` says whether anything is looked at.
    """

    def __init__(self, update: Update) -> None:
        self.skipped = 0
        """Updates that were left out."""
        self._update = update

    def decide(self, loss: torch.Tensor) -> tuple[torch.Tensor, bool]:
        """Take the update or leave it out; return the loss, and whether it was taken."""
        update = self._update
        if update.check_finite and not math.isfinite(float(loss)):
            is_taken = update.leave_out()
        else:
            update.unscale()
            is_taken = update.clip_and_apply()
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
        """Forget a step that failed: nothing of it is kept."""
