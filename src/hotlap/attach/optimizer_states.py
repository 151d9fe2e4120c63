"""`OptimizerStates`: copies of what optimizers keep, to be put back later."""

from collections.abc import Iterable
from typing import Any

import torch


class OptimizerStates:
    """What optimizers keep for the elements of their parameters now.

    Args:
        optimizers: whose state is copied.
    """

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._kept = [
            (value, value.detach().clone())
            for optimizer in optimizers
            for row in optimizer.state.values()
            if isinstance(row, dict)
            for value in row.values()
            # Not a count of steps: it goes on.
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim()
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        """Give the state the values that it had."""
        for value, before in self._kept:
            value.copy_(before)
