"""Forecast of the water level in a harbor, one hour ahead, from the last day."""

import argparse
import math

import torch


def levels(hours, generator):
    t = torch.arange(hours, dtype=torch.float32)
    moon = torch.sin(2 * math.pi * t / 12.42) + 0.4 * torch.sin(2 * math.pi * t / 24.84 + 1)
    wind = torch.randn(hours, generator=generator).cumsum(0)
    wind = wind - wind.unfold(0, 48, 1).mean(1)[(t.long() - 24).clamp(0, hours - 48)]
    return moon + 0.05 * wind


class Forecaster(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lstm = torch.nn.LSTM(1, size, batch_first=True)
        self.out = torch.nn.Linear(size, 1)

    def forward(self, x):
        out, _ = self.lstm(x.unsqueeze(-1))
        return self.out(out[:, -1]).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--size", type=int, default=24)
    args = parser.parse_args()
    generator = torch.Generator().manual_seed(11)
    torch.manual_seed(11)
    level = levels(6000, generator)
    days, after = level.unfold(0, 24, 1)[:-1], level[24:]
    model = Forecaster(args.size)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        squared = 0.0
        for rows in torch.randperm(len(days), generator=generator).split(64):
            loss = (model(days[rows]) - after[rows]).pow(2).mean()
            loss.backward()
            adam.step()
            model.zero_grad(set_to_none=False)
            squared += loss.item() * len(rows)
        print(f"epoch {epoch}: root of mean squared error {math.sqrt(squared / len(days)):.4f}")


if __name__ == "__main__":
    main()
