"""A recipe whose parameters have spaces: what every test with real trials of a search trains."""

import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

import hotlap
from hotlap import schedules


class Items(Dataset):
    """Points in a plane, on two sides of a curve."""

    def __init__(self, count: int, wait_s: float = 0.0) -> None:
        self.points = torch.randn(count, 2, generator=torch.Generator().manual_seed(count))
        self.wait_s = wait_s

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.wait_s)
        x, y = self.points[index]
        return self.points[index], int(y > x.sin())


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module, batch: Any) -> Any:
    return (model(batch[0]).argmax(1) == batch[1]).sum(), len(batch[1])


def task(
    *,
    lr: Annotated[float, hotlap.LogUniform(1e-4, 1.0)] = 1e-4,
    batch_size: int = 16,
    width: int = 8,
    epochs: int = 3,
    fault: Literal["", "crash", "exit", "memory", "nan"] = "",
    wait_s: float = 0.0,
    decays: bool = False,
) -> hotlap.Task:
    Path(f"seen-{os.getpid()}").touch()
    if fault == "crash":
        raise RuntimeError("the recipe crashes")

    def faulty(model: nn.Module, batch: Any) -> torch.Tensor:
        if fault == "exit" and model.training:
            os._exit(3)
        if fault == "memory":
            torch.empty(1 << 50)
        return loss(model, batch) * (float("nan") if fault == "nan" else 1.0)

    return hotlap.Task(
        model=lambda: nn.Sequential(
            nn.Linear(2, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 2)
        ),
        loss=faulty,
        data=Items(128, wait_s),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        batch_size=batch_size,
        schedule=schedules.warmup_cosine(total=epochs * 128 // batch_size) if decays else None,
        epochs=epochs,
        held_out=Items(64),
        metrics={"accuracy": accuracy},
    )
