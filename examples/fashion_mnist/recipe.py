"""Classify clothes (FashionMNIST) with hotlap's engine: the same task as `plain.py`.

hotlap train recipe.py --model mlp --epochs 3
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from data import find
from plain import FashionMNIST, cnn, mlp
from torch import nn

import hotlap


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(model(images), labels)


def evaluate(model: nn.Module, batch: Any) -> dict[str, Any]:
    images, labels = batch
    scores = model(images)
    right = (scores.argmax(dim=1) == labels).sum()
    return {"loss": nn.functional.cross_entropy(scores, labels), "accuracy": (right, len(labels))}


def task(
    *,
    model: Literal["mlp", "cnn"] = "mlp",
    epochs: int = 3,
    lr: Annotated[float, hotlap.LogUniform(1e-4, 1e-1)] = 1e-3,
    batch_size: int = 64,
    accumulate: int = 1,
    seed: int = 0,
    data: Path | None = None,
) -> hotlap.Task:
    folder = data or find()
    return hotlap.Task(
        model=mlp if model == "mlp" else cnn,
        loss=loss,
        data=FashionMNIST(folder, train=True),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=batch_size,
        accumulate=accumulate,
        epochs=epochs,
        seed=seed,
        held_out=FashionMNIST(folder, train=False),
        evaluate=evaluate,
    )
