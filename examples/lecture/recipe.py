"""The same as `plain.py`, done right: every item of a step counts once, the schedule is saved too.

hotlap train recipe.py --run-dir runs/lecture --save-every 5epochs
"""

import sys
from pathlib import Path

import torch

import hotlap

sys.path.insert(0, str(Path(__file__).parents[1] / "fashion_mnist"))

from data import find
from plain import FashionMNIST, mlp


def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def accuracy(model, batch):
    return (model(batch[0]).argmax(dim=1) == batch[1]).sum(), len(batch[1])


def task(*, epochs: int = 10, lr: float = 5e-3, seed: int = 0) -> hotlap.Task:
    folder = find()
    return hotlap.Task(
        model=mlp,
        loss=loss,
        data=FashionMNIST(folder, train=True),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-4),
        schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
        schedule_per="epoch",
        batch_size=64,
        accumulate=4,
        clip_norm=0.1,
        epochs=epochs,
        seed=seed,
        held_out=FashionMNIST(folder, train=False),
        metrics={"accuracy": accuracy},
    )
