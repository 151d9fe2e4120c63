"""The recipe of `lies_script`: the same images and network, trained by hotlap's engine.

Its steps are whole ones: the engine refuses to split a batch before batch norm.
"""

import torch
from lies_script import ACCUMULATE, groups, images, network
from torch import nn

import hotlap


def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def right(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    return (model(batch[0]).argmax(1) == batch[1]).double().mean()


def task(*, epochs: int = 1000) -> hotlap.Task:
    return hotlap.Task(
        model=network,
        loss=loss,
        data=images(2048, 1),
        optimizer=lambda model: torch.optim.AdamW(groups(model), lr=3e-3),
        batch_size=32 * ACCUMULATE,
        epochs=epochs,
        clip_norm=1.0,
        held_out=images(256, 2),
        metrics={"accuracy": right},
    )
