"""The sums of an epoch, on the device: losses times items, and items."""

from typing import Any

import torch

from hotlap.engine.step.device_decision import TakenFlag

Totals = tuple[torch.Tensor, ...]
"""Two scalars: losses times items, and items, each of the updates that were taken."""


def widen(number: Any) -> Any:
    """Return a scalar in a format that can hold a sum of many."""
    if not isinstance(number, torch.Tensor):
        return number
    kind = torch.float32 if number.device.type == "mps" else torch.float64
    return number.detach().reshape(()).to(kind)


def add_to(totals: Totals, loss: torch.Tensor, is_taken: TakenFlag, items: Any) -> None:
    """Add a step to the sums of its epoch; nobody waits.

    Args:
        totals: they are written to.
        loss: a scalar.
        is_taken: whether the step's update was.
        items: a number, or a wide scalar.
    """
    wide = widen(loss)
    totals[0].add_(is_taken.zero_where_skipped(wide * items))
    totals[1].add_(is_taken.zero_where_skipped(torch.ones_like(wide) * items))
