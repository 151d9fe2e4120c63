"""Losses of rows of logits, and their gradients in place of the logits: one read and one write.

A kernel takes each row: it finds the row's loss, and while the row is still in the cache of the
device, writes the gradient over it. Torch's own operators read and write the logits six times.
"""

import functools
import importlib.util
from typing import Any

import torch

_BLOCK, _WARPS = 8192, 8
"""The fastest of those that were tried on an H200, for 50,304 classes."""
_OUT_OF_RANGE = (
    "cross_entropy was given a target that is no class of the logits. Expected: 0 to the number of "
    "classes minus 1, or ignore_index."
)


@functools.cache
def has_kernel(device: str) -> bool:
    """Return whether there is a kernel for a kind of device."""
    return device == "cuda" and importlib.util.find_spec("triton") is not None


def take_losses(
    logits: torch.Tensor,
    targets: torch.Tensor,
    scales: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
    block: int | None = None,
    warps: int | None = None,
) -> torch.Tensor:
    """Return the losses of rows, in float32, and write the gradient over the logits.

    Args:
        logits: (rows, classes), rows of which each is contiguous.
        targets: (rows,), int64. Not checked here, see `check_targets`.
        scales: () or (rows,), float32: the gradient of each loss.
        ignore_index: targets of this value have a loss and a gradient of 0.
        label_smoothing: see `F.cross_entropy`.
        block: logits that a program of the kernel holds at once, a power of 2.
        warps: of a program of the kernel.
    """
    if not has_kernel(logits.device.type):
        return _by_operators(logits, targets, scales, ignore_index, label_smoothing)
    rows, classes = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    # triton launches on the current device, whichever its arguments are on.
    with torch.cuda.device_of(logits):
        _kernel()[(rows,)](
            logits,
            logits.stride(0),
            targets.contiguous(),
            losses,
            scales.contiguous(),
            scales.dim(),
            ignore_index,
            label_smoothing,
            classes=classes,
            IS_SMOOTH=label_smoothing > 0,
            BLOCK=block or _BLOCK,
            num_warps=warps or _WARPS,
        )
    return losses


def check_targets(targets: torch.Tensor, classes: int, ignore_index: int) -> None:
    """Stop the device where a target is no class, as `F.cross_entropy` does; nothing is waited for.

    Raises:
        RuntimeError: on a CPU, at once.
    """
    is_known = ((targets >= 0) & (targets < classes)) | (targets == ignore_index)
    torch._assert_async(is_known.all(), _OUT_OF_RANGE)  # pyright: ignore[reportPrivateImportUsage]


def _by_operators(
    logits: torch.Tensor,
    targets: torch.Tensor,
    scales: torch.Tensor,
    ignore_index: int,
    label_smoothing: float,
) -> torch.Tensor:
    wide = logits.float()
    counts = targets != ignore_index
    places = targets.where(counts, 0).unsqueeze(1)
    sums = wide.logsumexp(1, keepdim=True)
    picked = wide.gather(1, places)
    losses = (sums - picked).squeeze(1)
    gradient = (wide - sums).exp_()
    if label_smoothing > 0:
        smooth = sums.squeeze(1) - wide.mean(1)
        losses = (1 - label_smoothing) * losses + label_smoothing * smooth
        gradient -= label_smoothing / wide.shape[1]
    gradient.scatter_add_(1, places, torch.full_like(picked, label_smoothing - 1))
    gradient *= scales.unsqueeze(-1)
    logits.copy_(gradient.masked_fill_(~counts.unsqueeze(1), 0))
    return losses.masked_fill(~counts, 0)


@functools.cache
def _kernel() -> Any:
    """Return the kernel; triton is imported where there is a device for it."""
    from hotlap.kernels.softmax_rows_triton import kernel

    return kernel
