"""Trains for N steps on samples that take a while to read; without a seed of its own."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.0005)
        return torch.full((4,), float(index))


model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Slow(), batch_size=4, shuffle=True)
taken = 0
while taken < int(sys.argv[1]):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        taken += 1
