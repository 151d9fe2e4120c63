"""Randomly chosen elements of a tensor, which a check can afford to read at every step."""

from typing import Any

import numpy
import torch

from hotlap.distributed.shares import local_of

Vector = numpy.ndarray[Any, Any]
_TAKEN = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Formats that torch takes elements of by flat places, on the CPU and by CUDA."""


class Elements:
    """Drawn elements of one tensor, whatever its layout in memory.

    Args:
        tensor: one of the shape that is read later.
        count: elements to draw; all if it has no more.
        generator: which are drawn.
    """

    def __init__(self, tensor: torch.Tensor, count: int, generator: torch.Generator) -> None:
        self.shape = tensor.shape
        tensor = local_of(tensor.detach())
        self._places: torch.Tensor | None = None
        if tensor.numel() > count:
            drawn = torch.randint(
                tensor.numel(), (count,), generator=generator, device="cpu"
            ).unique()
            self._places = drawn.to(tensor.device)

    def of(self, tensor: torch.Tensor) -> Vector:
        """Return a copy of the elements in float64, on the host."""
        data = local_of(tensor.detach())
        if data.is_sparse:
            data = data.to_dense()
        if self._places is not None and self._places.device != data.device:
            # A copy may be kept elsewhere, or a model be moved.
            self._places = self._places.to(data.device)
        drawn = data.reshape(-1) if self._places is None else _take(data, self._places)
        if drawn.is_complex():
            # As torch's optimizers treat them: two numbers each.
            drawn = torch.view_as_real(drawn).reshape(-1)
        # A copy in any case: what is looked at is about to be changed in place.
        return drawn.to("cpu", torch.float64, copy=True).numpy()


def _take(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in _TAKEN and tensor.device.type in ("cpu", "cuda"):
        return tensor.take(places)
    return tensor[torch.unravel_index(places, tensor.shape)]
