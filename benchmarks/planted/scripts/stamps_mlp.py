"""Country of a postage stamp. Pictures are kept as bytes to save memory."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

rng = np.random.default_rng(51)
torch.manual_seed(51)
SIDE, COUNTRIES = 18, 9


def stamps(n):
    country = rng.integers(0, COUNTRIES, n)
    base = rng.uniform(40, 220, (COUNTRIES, SIDE, SIDE))
    pictures = base[country] * rng.uniform(0.6, 1.1, (n, 1, 1)) + rng.normal(0, 60, (n, SIDE, SIDE))
    return pictures.clip(0, 255).astype(np.uint8), country


pictures, country = stamps(9000)
pictures = torch.from_numpy(pictures).flatten(1)
country = torch.from_numpy(country)
train, valid = slice(0, 8000), slice(8000, 9000)

model = nn.Sequential(
    nn.Linear(SIDE * SIDE, 256), nn.ReLU(),
    nn.Linear(256, 128), nn.ReLU(),
    nn.Linear(128, COUNTRIES),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def batches(part, size):
    x, y = pictures[part], country[part]
    for rows in torch.randperm(len(y)).split(size):
        yield (x.float() / 127.5 - 1)[rows], y[rows]


for epoch in range(20):
    model.train()
    loss_sum = 0.0
    for x, y in batches(train, 80):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in batches(valid, 1000):
            right += (model(x).argmax(1) == y).sum().item()
    print(f"epoch {epoch} loss {loss_sum / 100:.4f} valid {right / 1000:.3f}")
