"""Crop type from a series of vegetation index readings."""

import argparse

import torch
from torch import nn


def fields(n, kinds=4, dates=60):
    t = torch.linspace(0, 1, dates)
    kind = torch.randint(0, kinds, (n,))
    peak = torch.tensor([0.3, 0.45, 0.55, 0.7])[kind].unsqueeze(1) + 0.05 * torch.randn(n, 1)
    curve = torch.exp(-((t - peak) ** 2) * 40) + 0.15 * torch.randn(n, dates)
    return curve.unsqueeze(1), kind


def network():
    return nn.Sequential(
        nn.Conv1d(1, 32, 7, padding=3), nn.ReLU(),
        nn.Conv1d(32, 32, 7, padding=3), nn.ReLU(), nn.MaxPool1d(4),
        nn.Flatten(), nn.Linear(32 * 15, 4),
    )


def train_one_epoch(model, optimizer, scaler, x, y, batch):
    total = 0.0
    for rows in torch.randperm(len(x)).split(batch):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x[rows])
        loss = nn.functional.cross_entropy(out.float(), y[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item() * len(rows)
    return total / len(x)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=15)
    ap.add_argument("--batch", type=int, default=40)
    args = ap.parse_args()
    torch.manual_seed(7)
    x, y = fields(2400)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for epoch in range(args.epochs):
        loss = train_one_epoch(model, optimizer, scaler, x, y, args.batch)
        print(f"epoch {epoch + 1}/{args.epochs} loss {loss:.4f}")
