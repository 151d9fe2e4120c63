"""The same folder of JPEG files for hotlap's engine: decoded once, augmented in every epoch.

hotlap train recipe.py --epochs 3
hotlap train recipe.py --by sample
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from data import files, find
from PIL import Image
from plain import PADDING, network
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import Dataset

import hotlap


class Decoded(Dataset):
    """What is the same in every epoch: uint8 pixels (3, height, width) and the class."""

    def __init__(self, folder: Path, *, train: bool) -> None:
        self.samples = files(folder, train=train)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as image:
            pixels = np.array(image.convert("RGB"))
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), label


def crop_and_flip(sample: Any, generator: torch.Generator) -> Any:
    """Crop and flip one image, with draws that follow from seed, epoch and sample."""
    pixels, label = sample
    height, width = pixels.shape[1:]
    top, left = torch.randint(2 * PADDING + 1, (2,), generator=generator).tolist()
    padded = pad(pixels, [PADDING] * 4)
    pixels = padded[:, top : top + height, left : left + width]
    return pixels.flip(2) if torch.rand((), generator=generator) < 0.5 else pixels, label


def crop_and_flip_all(batch: Any, draws: Any) -> Any:
    """Do the same to a whole batch at once: each row has draws of its own."""
    pixels, labels = batch
    height, width = pixels.shape[2:]
    top, left = draws.integers(0, 2 * PADDING + 1, 2).unbind(1)
    # A view of every crop that there is, of which one an image is copied.
    crops = pad(pixels, [PADDING] * 4).unfold(2, height, 1).unfold(3, width, 1)
    cropped = crops[torch.arange(len(pixels)), :, top, left]
    flipped = draws.uniform() < 0.5
    cropped[flipped] = cropped[flipped].flip(3)
    return cropped, labels


def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return cross_entropy(model(batch[0].float().div(255)), batch[1])


def right(model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, int]:
    predictions = model(batch[0].float().div(255)).argmax(dim=1)
    return (predictions == batch[1]).sum(), len(batch[1])


def task(
    *,
    epochs: int = 3,
    lr: float = 2e-3,
    batch_size: int = 64,
    by: Literal["batch", "sample"] = "batch",
    seed: int = 0,
    data: Path | None = None,
) -> hotlap.Task:
    folder = data or find()
    return hotlap.Task(
        model=network,
        loss=loss,
        data=Decoded(folder, train=True),
        transform=crop_and_flip if by == "sample" else None,
        batch_transform=crop_and_flip_all if by == "batch" else None,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=lr),
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
        held_out=Decoded(folder, train=False),
        metrics={"accuracy": right},
    )
