"""Restores running statistics of normalization layers where a step is skipped."""

from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase


class Statistics:
    """The statistics of a model, and what they were before the step.

    Without this, one batch that is not finite would make them so for the rest of the run, though
    its update is left out.

    Args:
        model: whose layers keep statistics, or not.
    """

    def __init__(self, model: Any) -> None:
        layers = [m for m in model.modules() if isinstance(m, _NormBase)]
        buffers = [b for layer in layers for b in layer._buffers.values() if b is not None]
        formats = dict.fromkeys(buffer.dtype for buffer in buffers)
        self._groups = [
            (found, [buffer.clone() for buffer in found])
            for found in ([b for b in buffers if b.dtype == dtype] for dtype in formats)
        ]
        self.are_kept = bool(buffers)
        """True if there are any."""
        self.ids = {id(buffer) for buffer in buffers}

    def keep(self) -> None:
        """Remember them, before a step."""
        for buffers, kept in self._groups:
            torch._foreach_copy_(kept, buffers)  # pyright: ignore[reportPrivateImportUsage]

    def put_back(self) -> None:
        """Make them what they were."""
        for buffers, kept in self._groups:
            torch._foreach_copy_(buffers, kept)  # pyright: ignore[reportPrivateImportUsage]

    def put_back_where(self, found: torch.Tensor) -> None:
        """Make them what they were if `found`, a scalar on the device, is not 0; nobody waits."""
        for buffers, kept in self._groups:
            # Few calls for many small tensors.
            now, before = (torch.cat([b.reshape(-1) for b in each]) for each in (buffers, kept))
            parts = torch.where(found == 0, now, before).split([b.numel() for b in buffers])
            shaped = [part.view(b.shape) for part, b in zip(parts, buffers, strict=True)]
            torch._foreach_copy_(buffers, shaped)  # pyright: ignore[reportPrivateImportUsage]
