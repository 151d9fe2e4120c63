"""A step of almost no compute, and the loop that one writes for it by hand."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

SAMPLES, BATCH = 20_000, 20
EPOCH = SAMPLES // BATCH


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (SAMPLES, 4) and targets (SAMPLES, 1)."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(SAMPLES, 4, generator=generator),
        torch.randn(SAMPLES, 1, generator=generator),
    )


def model() -> nn.Module:
    """Return a layer of five parameters."""
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the mean square error of a batch."""
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return plain SGD."""
    return torch.optim.SGD(model.parameters(), lr=1e-3)


class Gathered:
    """An epoch's batches, gathered from memory as the raw loop does it."""

    def __init__(self) -> None:
        self.inputs, self.targets = data()

    def __len__(self) -> int:
        return EPOCH

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for index in torch.randperm(SAMPLES).split(BATCH):
            yield self.inputs.index_select(0, index), self.targets.index_select(0, index)


def raw(*, clip: bool = False, schedule: bool = False, finite: bool = False) -> float:
    """Return us per step of one epoch by hand, with what else one may want in it."""
    inputs, targets = data()
    net = model()
    opt = optimizer(net)
    steps = torch.optim.lr_scheduler.StepLR(opt, 10**6) if schedule else None
    begin = time.perf_counter()
    for index in torch.randperm(SAMPLES).split(BATCH):
        batch = inputs.index_select(0, index), targets.index_select(0, index)
        opt.zero_grad()
        value = loss(net, batch)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if not finite or value.isfinite():
            opt.step()
        if steps is not None:
            steps.step()
    return (time.perf_counter() - begin) / EPOCH * 1e6
