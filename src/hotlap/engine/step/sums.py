"""The sums of an epoch, on the device: losses times items, and items."""

from typing import Any

import torch

Totals = tuple[torch.Tensor, ...]
"""Two scalars: losses times items, and items, each of the updates that were taken."""


def widen(number: Any) -> Any:
    """Return numbers in a format that can hold a sum of many."""
    if not isinstance(number, torch.Tensor):
        return number
    return number.detach().to(wide_format(number.device.type))


def wide_format(kind: str) -> torch.dtype:
    """Return the widest format of a kind of devices."""
    return torch.float32 if kind == "mps" else torch.float64


def add_to(totals: Totals, losses: torch.Tensor, found: torch.Tensor, items: Any) -> None:
    """Add steps to the sums of their epoch; nobody waits.

    Args:
        totals: they are written to.
        losses: shape (n,).
        found: not 0 where an update was left out, shape (n,).
        items: a number, or shape (n,).
    """
    is_left_out = found != 0
    counted = torch.zeros_like(widen(losses)).add_(widen(items)).masked_fill_(is_left_out, 0)
    totals[0].add_((widen(losses) * counted).masked_fill_(is_left_out, 0).sum())
    totals[1].add_(counted.sum())
