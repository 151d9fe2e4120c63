"""Three tasks whose steps hold many activations: wide layers, a small GPT, convolutions."""

from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap

_CLASSES, _TOKENS, _SIDE = 10, 64, 24


class Block(nn.Module):
    """One block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(given.shape[1])
        normed = self.norms[0](given)
        given = given + self.attention(normed, normed, normed, attn_mask=mask, is_causal=True)[0]
        return given + self.mlp(self.norms[1](given))


def mlp() -> nn.Module:
    """Return layers as wide as 1,024."""
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), *layers, nn.Linear(1024, _CLASSES))


def gpt() -> nn.Module:
    """Return a language model of bytes."""
    width = 64
    blocks = [Block(width) for _ in range(3)]
    return nn.Sequential(nn.Embedding(256, width), *blocks, nn.Linear(width, 256))


def cnn() -> nn.Module:
    """Return convolutions without batch norm."""
    blocks = [
        nn.Sequential(nn.Conv2d(before, 32, 3, padding=1), nn.ReLU()) for before in (3, 32, 32)
    ]
    return nn.Sequential(
        *blocks, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(32 * (_SIDE // 4) ** 2, _CLASSES)
    )


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy, of every position where there are several."""
    return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


def _data(model: str, samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    if model == "gpt":
        text = torch.randint(256, (samples, _TOKENS + 1), generator=generator)
        return TensorDataset(text[:, :-1].contiguous(), text[:, 1:].contiguous())
    shape = (64,) if model == "mlp" else (3, _SIDE, _SIDE)
    inputs = torch.randn(samples, *shape, generator=generator)
    return TensorDataset(inputs, torch.randint(_CLASSES, (samples,), generator=generator))


def task(
    *, model: Literal["mlp", "gpt", "cnn"] = "mlp", batch_size: int = 512, steps: int = 100
) -> hotlap.Task:
    make = {"mlp": mlp, "gpt": gpt, "cnn": cnn}[model]
    return hotlap.Task(
        model=make,
        loss=loss,
        data=_data(model, 2 * batch_size),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        batch_size=batch_size,
        steps=steps,
    )
