"""Find which of five motifs is hidden in a DNA string (attention over positions)."""

import argparse
import math

import torch
from torch import nn

BASES = 4
LENGTH = 192
MOTIFS = torch.tensor(
    [[0, 1, 2, 3, 0, 1], [3, 3, 0, 0, 1, 2], [1, 0, 1, 0, 3, 3], [2, 2, 1, 3, 2, 0], [0, 3, 1, 1, 2, 2]]
)


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads, self.size = heads, dim // heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.size)
        weights = torch.softmax(scores, dim=-1)
        mixed = weights @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class MotifNet(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Embedding(BASES, dim)
        self.local = nn.Conv1d(dim, dim, 7, padding=3)
        self.attention = Attention(dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, len(MOTIFS))

    def forward(self, dna):
        x = self.embed(dna)
        x = torch.relu(self.local(x.transpose(1, 2)).transpose(1, 2))
        x = self.norm(x + self.attention(x))
        return self.head(x.amax(1))


def strings(n):
    dna = torch.randint(0, BASES, (n, LENGTH))
    which = torch.randint(0, len(MOTIFS), (n,))
    at = torch.randint(0, LENGTH - 6, (n, 1)) + torch.arange(6)
    return dna.scatter(1, at, MOTIFS[which]), which


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=500)
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--lr", type=float, default=2e-3)
    args = p.parse_args()
    torch.manual_seed(55)
    net = MotifNet()
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    seen = right = 0
    for step in range(1, args.steps + 1):
        dna, which = strings(args.batch)
        scores = net(dna)
        loss = nn.functional.cross_entropy(scores, which)
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += args.batch
        right += (scores.argmax(1) == which).sum().item()
        if step % 50 == 0:
            print(f"{step}: loss {loss.item():.3f}, right {right / seen:.3f}")
            seen = right = 0
