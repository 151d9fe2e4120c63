"""Learn to write text with a GPT, with hotlap's engine: the same task as `plain.py`.

hotlap train recipe.py --size 1m --steps 500
"""

from pathlib import Path
from typing import Literal

import torch
from plain import GPT, SIZES, loss_of, optimizer_of
from text import find, load
from torch.utils.data import Dataset

import hotlap
from hotlap.schedules import warmup_cosine

EVALUATED = 100
"""Windows to evaluate on, spread over the held-out text."""


class Windows(Dataset):
    """Windows of a text, `block` bytes long, one at each multiple of `stride`."""

    def __init__(self, text: bytes, block: int, stride: int) -> None:
        self.text = torch.tensor(list(text), dtype=torch.long)
        self.block, self.stride = block, stride

    def __len__(self) -> int:
        return max(0, (len(self.text) - 1 - self.block) // self.stride + 1)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        begin = index * self.stride
        window = self.text[begin : begin + self.block + 1]
        return window[:-1], window[1:]


def loss(model, batch):
    return loss_of(model, *batch)


def task(
    *,
    size: Literal["1m", "10m", "30m", "124m"] = "1m",
    steps: int = 500,
    batch_size: int = 8,
    accumulate: int = 1,
    lr: float = 1e-3,
    seed: int = 0,
    data: Path | None = None,
) -> hotlap.Task:
    path, config = data or find(), SIZES[size]
    held_out = load(path, train=False)
    return hotlap.Task(
        model=lambda: GPT(config),
        loss=loss,
        data=Windows(load(path, train=True), config.block, stride=1),
        optimizer=lambda model: optimizer_of(model, lr),
        batch_size=batch_size,
        accumulate=accumulate,
        steps=steps,
        schedule=warmup_cosine(total=steps, warmup=max(1, steps // 20), floor=0.1),
        clip_norm=1.0,
        seed=seed,
        held_out=Windows(held_out, config.block, stride=len(held_out) // EVALUATED),
    )
