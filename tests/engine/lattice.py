"""A task in which all arithmetic is exact, so that every split of a batch must agree to the bit."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset


def model() -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    layer = nn.Linear(4, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-8, 9, (2, 4), generator=generator) / 16)
        layer.bias.copy_(torch.randint(-8, 9, (2,), generator=generator) / 16)
    return layer


def data(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(-4, 5, (count, 4), generator=generator).float()
    return TensorDataset(inputs, torch.randint(-4, 5, (count, 2), generator=generator).float())


def squares(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return each item's loss, shape (items,)."""
    inputs, targets = batch
    return (model(inputs) - targets).square().sum(dim=1)


def mean(model: nn.Module, batch: Any) -> torch.Tensor:
    return squares(model, batch).mean()


def sum_and_count(model: nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
    items = squares(model, batch)
    return items.sum(), len(items)


def tokens(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Count only items whose first input is above zero, as padding or ignored targets do."""
    counts = batch[0][:, 0] > 0
    return (squares(model, batch) * counts).sum(), counts.sum()
