"""Vehicles per quarter of an hour: forecast with nn.GRU on windows of one long series."""

import math

import torch
from torch import nn

WINDOW = 48


class Forecaster(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.gru = nn.GRU(4, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 4)

    def forward(self, x):
        states, _ = self.gru(x)
        return self.head(states[:, -1])


def flow(quarters):
    t = torch.arange(quarters, dtype=torch.float32)
    day = torch.stack([torch.sin(2 * math.pi * t / 96 + p) for p in (0.0, 0.7, 1.1, 2.0)], 1)
    return day + 0.2 * torch.randn(quarters, 4)


def main():
    torch.manual_seed(40)
    windows = flow(9000).unfold(0, WINDOW + 1, 1).permute(0, 2, 1)
    train, test = windows[:8000], windows[8100:]
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    step = 0
    while step < 800:
        rows = train[torch.randint(0, len(train), (48,))]
        loss = nn.functional.mse_loss(model(rows[:, :-1]), rows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 200 == 0:
            model.eval()
            with torch.no_grad():
                error = nn.functional.mse_loss(model(test[:, :-1]), test[:, -1])
            model.train()
            print(f"step {step}: train {loss.item():.4f}, test {error.item():.4f}")


main()
