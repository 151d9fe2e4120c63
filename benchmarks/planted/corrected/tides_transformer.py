import argparse
import math

import torch
import torch.nn as nn


class Head(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.mix(x)


class TideModel(nn.Module):
    """Level of the sea in an hour from the last 24 readings of three harbours."""

    def __init__(self, dim=32, layers=8):
        super().__init__()
        self.up = nn.Linear(3, dim)
        self.where = nn.Parameter(torch.randn(24, dim) * 0.1)
        self.stack = nn.Sequential(*(Head(dim) for _ in range(layers)))
        self.down = nn.Linear(dim, 3)

    def forward(self, x):
        return self.down(self.stack(self.up(x) + self.where)[:, -1])


def tide(t):
    moon = torch.sin(2 * math.pi * t / 12.42)
    sun = 0.46 * torch.sin(2 * math.pi * t / 12.0)
    return torch.stack([moon + sun, moon.roll(1) * 0.8 + sun, moon.roll(3) + 0.5 * sun], -1)


def limit_gradients(model, most):
    """Scale all gradients down if their common norm is too large; tell if something is wrong."""
    return nn.utils.clip_grad_norm_(model.parameters(), most, error_if_nonfinite=True).item()


def main(args):
    torch.manual_seed(args.seed)
    series = tide(torch.arange(0, 6000, 1.0)) + 0.05 * torch.randn(6000, 3)
    model = TideModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, fused=True)
    for step in range(args.steps):
        start = torch.randint(0, len(series) - 25, (args.batch_size,))
        x = series[start[:, None] + torch.arange(24)]
        y = series[start + 24]
        loss = (model(x) - y).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = limit_gradients(model, 0.5)
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"{step + 1}/{args.steps}: mae {loss.item():.4f}, |g| {norm:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
