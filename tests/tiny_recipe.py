"""A recipe that starts in a second and a half: what every test with trials of a recipe trains."""

import random
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap import schedules


class Items(Dataset):
    """Samples that are made anew each time they are asked for, as decoding does."""

    def __init__(self, count: int, augment: bool) -> None:
        self.pixels = torch.arange(count * 64, dtype=torch.float32).reshape(count, 64)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.pixels[index].sin().mul(3).add(1).div(4)
        if self.augment:
            sample = sample + random.random()
        return sample, index % 10


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def task(
    *,
    epochs: int = 2,
    samples: int = 256,
    batch_size: int = 16,
    accumulate: int = 1,
    optimizer: Literal["Adam", "SGD"] = "Adam",
    augment: bool = False,
    fault: Literal["", "crash"] = "",
) -> hotlap.Task:
    if fault == "crash":
        raise RuntimeError("the recipe crashes")
    kind = getattr(torch.optim, optimizer)
    steps = epochs * -(-samples // (batch_size * accumulate))
    return hotlap.Task(
        model=model,
        loss=loss,
        data=Items(samples, augment),
        optimizer=lambda model: kind(model.parameters(), lr=0.01),
        batch_size=batch_size,
        accumulate=accumulate,
        epochs=epochs,
        schedule=schedules.warmup_cosine(total=steps, warmup=4),
        clip_norm=5.0,
        held_out=Items(32, False),
    )
