"""Monthly rent, straight from the city's records."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(41)


def records(n):
    year = rng.integers(1890, 2024, n)
    area = rng.gamma(8, 9, n)
    distance = rng.exponential(4000, n)
    income = rng.normal(42_000, 9_000, n)
    floor = rng.integers(0, 12, n)
    rent = 9 * area * np.exp(-distance / 15_000) * (income / 42_000) ** 0.5 + 8 * floor
    rent *= 1 + 0.15 * (year > 1995)
    columns = [year, area, distance, income, floor] + [rng.normal(size=n) for _ in range(15)]
    return np.stack(columns, axis=1), rent * rng.normal(1, 0.05, n)


class RentModel(nn.Module):
    def __init__(self, inputs, width=256):
        super().__init__()
        self.layer1 = nn.Linear(inputs, width)
        self.layer2 = nn.Linear(width, width)
        self.layer3 = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.layer1(x))
        x = torch.relu(self.layer2(x))
        return self.layer3(x).flatten()


def main():
    torch.manual_seed(41)
    x, rent = records(9000)
    x = torch.tensor(x, dtype=torch.float32)
    y = torch.tensor((rent - rent.mean()) / rent.std(), dtype=torch.float32)
    model = RentModel(x.shape[1])
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(20):
        squares = 0.0
        for rows in torch.randperm(len(x)).split(120):
            error = model(x[rows]) - y[rows]
            loss = (error**2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            squares += loss.item() * len(rows)
        print(f"epoch {epoch + 1}: rmse {(squares / len(x)) ** 0.5:.4f} standard deviations")


if __name__ == "__main__":
    main()
