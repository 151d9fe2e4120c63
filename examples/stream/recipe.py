"""The same for hotlap's engine: every sample once, in one order, with any number of workers.

hotlap train recipe.py --run-dir runs/stream --save-every 100steps
"""

import torch
from plain import Reader, Text, find, loss_of

import hotlap


def loss(model, batch):
    return loss_of(model, *batch)


def accuracy(model, batch):
    codes, following = batch
    return (model(codes).argmax(dim=-1) == following).sum(), following.numel()


def task(*, epochs: int = 2, lr: float = 1e-2, buffer: int = 1000, seed: int = 0) -> hotlap.Task:
    files = find()
    return hotlap.Task(
        model=Reader,
        loss=loss,
        data=Text(files, train=True),
        shuffle_buffer=buffer,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=32,
        epochs=epochs,
        seed=seed,
        held_out=Text(files, train=False),
        metrics={"accuracy": accuracy},
    )
