"""Remaining life of an engine from its sensors, last 30 cycles, flattened."""

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def simulate(engines, rng):
    """One row per cycle: sensors drift as the engine wears out."""
    rows, lives = [], []
    for _ in range(engines):
        life = rng.integers(120, 250)
        wear = np.linspace(0, 1, life) ** 2
        gain = rng.normal(1, 0.2, 16)
        sensors = wear[:, None] * gain + rng.normal(0, 0.1, (life, 16))
        for end in range(30, life, 2):
            rows.append(sensors[end - 30 : end].ravel())
            lives.append(min(life - end, 125) / 125)
    return np.stack(rows), np.array(lives)


class LifeNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(480, width)
        self.b = nn.Linear(width, width)
        self.c = nn.Linear(width, 1)

    def forward(self, x):
        x = F.relu(self.a(x))
        x = F.dropout(F.relu(self.b(x)), 0.2, self.training)
        return self.c(x).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=448)
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(1)
    x, y = simulate(100, np.random.default_rng(1))
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    model = LifeNet(args.width).double()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    steps = len(x) // 128
    for epoch in range(args.epochs):
        shuffled = torch.randperm(len(x))
        losses = np.zeros(steps)
        for step in range(steps):
            pick = shuffled[step * 128 : (step + 1) * 128]
            prediction = model(x[pick])
            loss = F.mse_loss(prediction, y[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[step] = loss.item()
        print(f"epoch {epoch}: rmse {125 * np.sqrt(losses.mean()):.1f} cycles")


if __name__ == "__main__":
    main()
