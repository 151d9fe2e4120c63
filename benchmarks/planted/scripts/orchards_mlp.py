"""Predict the harvest of an orchard, in tonnes, from its survey."""

import math

import torch
from torch.utils.data import DataLoader, Dataset


class Survey(Dataset):
    """Trees per hectare, age, rain, frost days, slope and so on, standardized."""

    def __init__(self, count, seed):
        source = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(count, 11, generator=source)
        yields = 0.8 * self.rows[:, 0] - 0.5 * self.rows[:, 3] + self.rows[:, 1] * self.rows[:, 2]
        self.tonnes = yields + 0.1 * torch.randn(count, generator=source)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number], self.tonnes[number]


def squared_error(predicted, harvested):
    return (predicted - harvested).pow(2).mean()


class Forecaster:
    def __init__(self, width=48, rate=2e-3):
        self.network = torch.nn.Sequential(
            torch.nn.Linear(11, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, width),
            torch.nn.Tanh(),
            torch.nn.Linear(width, 1),
        )
        self.adam = torch.optim.Adam(self.network.parameters(), lr=rate)

    def fit(self, surveys):
        losses = []
        for rows, tonnes in surveys:
            loss = squared_error(self.network(rows), tonnes)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    @torch.no_grad()
    def error(self, surveys):
        self.network.eval()
        off = [(self.network(rows)[:, 0] - tonnes).square() for rows, tonnes in surveys]
        self.network.train()
        return math.sqrt(torch.cat(off).mean().item())


if __name__ == "__main__":
    torch.manual_seed(3)
    surveyed = DataLoader(Survey(4800, seed=1), batch_size=40, shuffle=True)
    next_year = DataLoader(Survey(800, seed=2), batch_size=200)
    forecaster = Forecaster()
    for season in range(10):
        loss = forecaster.fit(surveyed)
        print(f"{season:2d}  loss {loss:.4f}  off by {forecaster.error(next_year):.3f} t")
