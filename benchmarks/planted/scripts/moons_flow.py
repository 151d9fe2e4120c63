"""A normalizing flow (affine couplings) on two moons."""

import math

import torch
from torch import nn


def moons(n):
    t = torch.rand(n) * math.pi
    upper = torch.rand(n) < 0.5
    x = torch.where(upper, t.cos(), 1 - t.cos())
    y = torch.where(upper, t.sin(), 0.5 - t.sin())
    return torch.stack([x, y], 1) + 0.08 * torch.randn(n, 2)


class Coupling(nn.Module):
    def __init__(self, flip, hidden=160):
        super().__init__()
        self.flip = flip
        self.net = nn.Sequential(
            nn.Linear(1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, 2),
        )

    def forward(self, z):
        kept, moved = (z[:, 1:], z[:, :1]) if self.flip else (z[:, :1], z[:, 1:])
        log_scale, shift = self.net(kept).chunk(2, 1)
        log_scale = torch.tanh(log_scale)
        moved = moved * log_scale.exp() + shift
        pair = (moved, kept) if self.flip else (kept, moved)
        return torch.cat(pair, 1), log_scale.squeeze(1)


class Flow(nn.Module):
    def __init__(self, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(layers))

    def log_prob(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, extra = layer(x)
            logdet = logdet + extra
        return logdet - 0.5 * x.square().sum(1) - math.log(2 * math.pi)


torch.manual_seed(2)
flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
schedule = torch.profiler.schedule(wait=0, warmup=1, active=9)
with torch.profiler.profile(schedule=schedule, record_shapes=True) as watch:
    for step in range(1500):
        loss = -flow.log_prob(moons(256)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.step()
        if step % 150 == 0:
            print(f"{step:5d} nll {loss.item():.4f}")
