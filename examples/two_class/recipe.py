"""The same toy for hotlap's engine.

hotlap train recipe.py
"""

import torch
from plain import INPUTS, LABELS, Points, network

import hotlap


def loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def task(*, epochs: int = 3, lr: float = 0.5, seed: int = 123) -> hotlap.Task:
    return hotlap.Task(
        model=network,
        loss=loss,
        data=Points(INPUTS, LABELS),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        batch_size=2,
        drop_last=True,
        epochs=epochs,
        seed=seed,
        held_out=Points(INPUTS, LABELS),
    )
