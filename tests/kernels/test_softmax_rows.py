"""Losses of rows, and gradients in place of the logits, on a CPU and by the kernel of a GPU."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from hotlap.kernels.softmax_rows import check_targets, take_losses

ROWS, CLASSES, IGNORED = 6, 300, -1
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

IN_TRITONS_INTERPRETER = """
import sys
import pytest
from hotlap.kernels import softmax_rows
softmax_rows.has_kernel, softmax_rows._BLOCK = lambda device: True, 64
chosen = ["-k", "cpu and not interpreter", sys.argv[1]]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *chosen]))
"""


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("device", DEVICES)
def test_losses_and_gradients_are_those_of_cross_entropy(
    device: str, dtype: torch.dtype, smoothing: float, by_row: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(ROWS, CLASSES, generator=generator) * 3).to(device, dtype)
    # A column of a table: the next target is not the next number in memory.
    targets = torch.randint(CLASSES, (ROWS, 2), generator=generator).to(device)[:, 1]
    targets[2] = IGNORED
    logits[0, : CLASSES // 2], targets[0] = -torch.inf, CLASSES - 1
    scales = torch.rand(ROWS if by_row else (), generator=generator).to(device)
    wide = logits.double().requires_grad_()
    expected = functional.cross_entropy(
        wide, targets, ignore_index=IGNORED, label_smoothing=smoothing, reduction="none"
    )
    (gradient,) = torch.autograd.grad((expected * scales).sum(), wide)
    losses = take_losses(logits, targets, scales, IGNORED, smoothing)
    # Triton's interpreter cuts numbers off where a device rounds them.
    if smoothing > 0:
        # Then the loss of a row with a logit of -inf is infinite.
        losses, expected = losses[1:], expected[1:]
        logits, gradient = logits[1:], gradient[1:]
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        logits.double(), gradient, rtol=2 * torch.finfo(dtype).eps, atol=1e-6
    )


def test_a_target_that_is_no_class_is_an_error() -> None:
    targets = torch.tensor([0, CLASSES - 1, IGNORED])
    check_targets(targets, CLASSES, IGNORED)
    for wrong in (CLASSES, -2):
        targets[1] = wrong
        with pytest.raises(RuntimeError, match="a target that is no class"):
            check_targets(targets, CLASSES, IGNORED)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_kernel_computes_the_same_in_tritons_interpreter() -> None:
    # In a process of its own: triton reads the variable when it is imported.
    subprocess.run(
        [sys.executable, "-c", IN_TRITONS_INTERPRETER, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=True,
        timeout=300,
    )
