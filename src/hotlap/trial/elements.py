"""Drawn elements of a tensor: what a check can afford to look at in every step."""

from typing import Any

import numpy
import torch

Vector = numpy.ndarray[Any, Any]


class Elements:
    """Drawn elements of one tensor, whatever its layout in memory.

    Args:
        tensor: one of the shape that is read later.
        count: elements to draw; all if it has no more.
        generator: which are drawn.
    """

    def __init__(self, tensor: torch.Tensor, count: int, generator: torch.Generator) -> None:
        self.shape = tensor.shape
        self._places: tuple[torch.Tensor, ...] | None = None
        if tensor.numel() > count:
            drawn = torch.randint(tensor.numel(), (count,), generator=generator).unique()
            places = torch.unravel_index(drawn, tensor.shape)
            self._places = tuple(place.to(tensor.device) for place in places)

    def of(self, tensor: torch.Tensor) -> Vector:
        """Return a copy of the elements in float64, on the host."""
        data = tensor.detach()
        if data.is_sparse:
            data = data.to_dense()
        drawn = data.reshape(-1) if self._places is None else data[self._places]
        # A copy in any case: what is looked at is about to be changed in place.
        return drawn.to("cpu", torch.float64, copy=True).numpy()
