"""Trains a small model on data that nap for NAP_MS milliseconds a batch."""

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

NAP_S = float(os.environ.get("NAP_MS", "6")) / 1000


class Napping(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitems__(self, places: list[int]) -> list[torch.Tensor]:
        time.sleep(NAP_S)
        return [torch.full((8,), float(place)) for place in places]


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in range(2000):
    for x in DataLoader(Napping(), batch_size=8):
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
