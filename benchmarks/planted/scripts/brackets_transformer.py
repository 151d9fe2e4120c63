"""Is a string of brackets balanced up to here? A transformer encoder with a causal mask."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Settings:
    dim: int = 64
    heads: int = 4
    layers: int = 2
    length: int = 64
    batch: int = 24
    steps: int = 600
    lr: float = 1e-3


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.heads = s.heads
        self.norm1 = nn.LayerNorm(s.dim)
        self.qkv = nn.Linear(s.dim, 3 * s.dim)
        self.out = nn.Linear(s.dim, s.dim)
        self.norm2 = nn.LayerNorm(s.dim)
        self.mlp = nn.Sequential(nn.Linear(s.dim, 4 * s.dim), nn.GELU(), nn.Linear(4 * s.dim, s.dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.symbols = nn.Embedding(2, s.dim)
        self.places = nn.Embedding(s.length, s.dim)
        self.register_buffer("index", torch.arange(s.length), persistent=False)
        self.blocks = nn.Sequential(*(Block(s) for _ in range(s.layers)))
        self.head = nn.Linear(s.dim, 2)

    def forward(self, x):
        return self.head(self.blocks(self.symbols(x) + self.places(self.index)))


def strings(s):
    x = torch.randint(0, 2, (s.batch, s.length))
    depth = (1 - 2 * x).cumsum(1)
    return x, (depth >= 0).cummin(1).values.long()


def train(s):
    model = Reader(s)
    optimizer = torch.optim.AdamW(model.parameters(), lr=s.lr, fused=True)
    for step in range(1, s.steps + 1):
        x, y = strings(s)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"{step:4d} {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    train(Settings())
