"""Thin sections of rocks. Pictures are cut and turned at random while they are read."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ThinSections(Dataset):
    def __init__(self, n, seed=0):
        self.rng = np.random.default_rng(seed)
        self.kind = self.rng.integers(0, 4, n)
        grain = np.array([2, 4, 8, 16])[self.kind]
        self.pictures = [
            np.kron(self.rng.normal(0, 1, (32 // g, 32 // g)), np.ones((g, g))).astype("float32")
            for g in grain
        ]

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        top, left = self.rng.integers(0, 8, 2)
        picture = self.pictures[i][top : top + 24, left : left + 24]
        picture = np.rot90(picture, self.rng.integers(4))
        picture = picture + self.rng.normal(0, 0.5, picture.shape)
        return torch.from_numpy(picture.astype("float32")).unsqueeze(0), int(self.kind[i])


class RockNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 36, 4)

    def forward(self, x):
        x = torch.max_pool2d(torch.relu(self.c1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.c2(x)), 2)
        return self.fc(x.flatten(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(
        ThinSections(1600), batch_size=40, shuffle=True, num_workers=2, persistent_workers=True
    )
    net = RockNet()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(15):
        for picture, kind in loader:
            loss = nn.functional.cross_entropy(net(picture), kind)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"{epoch}: {loss.item():.4f}")
