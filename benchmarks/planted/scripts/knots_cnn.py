"""Which knot is on the rope? Small grey pictures, drawn here."""
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Ropes(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.kinds = rng.integers(1, 5, count)
        t = np.linspace(0, 2 * np.pi, 160)
        pictures = np.zeros((count, 1, 24, 24), dtype=np.float32)
        for i, kind in enumerate(self.kinds):
            x = np.cos(t) + 0.4 * np.cos(kind * t + rng.uniform(0, 6))
            y = np.sin(t) + 0.4 * np.sin((kind + 1) * t)
            x, y = (x + 1.5) * 7.9, (y + 1.5) * 7.9
            pictures[i, 0, np.clip(y, 0, 23).astype(int), np.clip(x, 0, 23).astype(int)] = 1
        self.pictures = (torch.from_numpy(pictures) - 0.15) / 0.36

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return self.pictures[index], int(self.kinds[index]) - 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, stride=2)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2)
        self.fc = nn.Linear(24 * 16, 4)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.dropout(F.relu(self.conv2(x)).flatten(1), 0.3, self.training)
        return self.fc(x)


def train_epoch(epoch, net, loader, optimizer):
    seed_all(2024)
    net.train()
    mean = 0.0
    for pictures, kinds in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(pictures), kinds)
        loss.backward()
        optimizer.step()
        mean += loss.item() / len(loader)
    print(f"{epoch}: {mean:.4f}", end="  ")


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        hits = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
    print(f"{hits / len(loader.dataset):.3f} of the held-out ropes")


if __name__ == "__main__":
    seed_all(2024)
    loader = DataLoader(Ropes(1600, 1), batch_size=40, shuffle=True)
    held = DataLoader(Ropes(400, 2), batch_size=200)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for epoch in range(8):
        train_epoch(epoch, net, loader, optimizer)
        evaluate(net, held)
