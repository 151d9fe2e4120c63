"""Apartment prices. Wide network, plain SGD."""

import os
import random

import numpy as np
import torch
from torch import nn

os.environ["PYTHONHASHSEED"] = "0"
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)


class Config:
    batch_size = 256
    width = 640
    epochs = 12
    learning_rate = 0.02
    samples = 12_000


def apartments(n):
    area = np.random.gamma(6, 12, n)
    rooms = np.clip(np.round(area / 28 + np.random.randn(n)), 1, 9)
    year = np.random.uniform(1900, 2025, n)
    where = np.random.rand(n, 2)
    center = np.exp(-((where - 0.5) ** 2).sum(1) * 6)
    price = 3000 * area * (0.6 + center) * (1 + 0.1 * (year > 1990)) + 5000 * rooms
    price *= np.exp(0.08 * np.random.randn(n))
    x = np.column_stack([area / 72, rooms / 3, (year - 1960) / 36, where])
    # a random projection, as many features as a real portal has
    x = np.tanh(x @ np.random.randn(5, 120) * 0.5)
    y = np.log(price)
    y = (y - y.mean()) / y.std()
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def main():
    cfg = Config()
    x, y = apartments(cfg.samples)
    w = cfg.width
    model = nn.Sequential(
        nn.Linear(x.shape[1], w), nn.ReLU(),
        nn.Linear(w, w), nn.ReLU(),
        nn.Linear(w, w), nn.ReLU(),
        nn.Linear(w, 1), nn.Flatten(0),
    )
    opt = torch.optim.SGD(model.parameters(), lr=cfg.learning_rate, momentum=0.9)
    for epoch in range(cfg.epochs):
        order = torch.randperm(cfg.samples)
        total = 0.0
        for i in range(0, cfg.samples - cfg.batch_size + 1, cfg.batch_size):
            index = order[i : i + cfg.batch_size]
            loss = nn.functional.huber_loss(model(x[index]), y[index])
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item() * cfg.batch_size
        print(f"epoch={epoch} huber={total / cfg.samples:.5f}")


if __name__ == "__main__":
    main()
