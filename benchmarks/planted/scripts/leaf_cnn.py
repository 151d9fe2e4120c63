"""Leaf shapes: a fisheye camera is simulated, a network names the species."""

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

N_SPECIES = 5
SIDE = 32


def leaf(species, rng):
    yy, xx = np.mgrid[-1:1:32j, -1:1:32j]
    angle = np.arctan2(yy, xx) + rng.uniform(0, 2 * np.pi)
    radius = 0.55 + 0.2 * np.cos((species + 2) * angle)
    picture = (np.hypot(xx, yy) < radius).astype(np.float32)
    return picture + rng.normal(0, 0.1, (SIDE, SIDE)).astype(np.float32)


class Leaves(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.species = rng.integers(0, N_SPECIES, count)
        self.pictures = np.stack([leaf(s, rng) for s in self.species])
        self.lens = None

    def calibrate(self):
        """Trace rays through the lens: where does each pixel come from?"""
        source = np.zeros((SIDE, SIDE), np.int64)
        for row in range(SIDE):
            for column in range(SIDE):
                x, y = 2 * column / (SIDE - 1) - 1, 2 * row / (SIDE - 1) - 1
                r = np.hypot(x, y)
                k = 1.0
                for _ in range(20):
                    k = 1.0 - 0.12 * (k * r) ** 2
                source[row, column] = (
                    int((y * k + 1) / 2 * (SIDE - 1)) * SIDE + int((x * k + 1) / 2 * (SIDE - 1))
                )
        return source

    def __len__(self):
        return len(self.species)

    def __getitem__(self, i):
        if self.lens is None:
            self.lens = self.calibrate()
        picture = self.pictures[i].reshape(-1)[self.lens]
        if np.random.rand() < 0.5:
            picture = picture[:, ::-1].copy()
        return torch.from_numpy(picture)[None], self.species[i]


class SpeciesNet(nn.Sequential):
    def __init__(self, width=24):
        super().__init__(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 64, N_SPECIES),
        )


def train(model, loader, optimizer, loss_fn):
    model.train()
    total = 0.0
    for pictures, species in loader:
        optimizer.zero_grad()
        loss = loss_fn(model(pictures), species)
        loss.backward()
        optimizer.step()
        total += loss.item() / len(loader)
    return total


if __name__ == "__main__":
    torch.manual_seed(1)
    loader = DataLoader(Leaves(1200), batch_size=40, shuffle=True, num_workers=2)
    model = SpeciesNet()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    schedule = optim.lr_scheduler.StepLR(optimizer, 10, 0.5)
    for epoch in range(25):
        loss = train(model, loader, optimizer, nn.CrossEntropyLoss())
        schedule.step()
        print(f"Epoch {epoch:02d}: {loss:.4f}")
