"""Tell simple sketches apart (zigzag, loop, star, ...) with a small convolutional network."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SIZE = 28
KINDS = 6


def make_strokes(kind, rng):
    t = np.linspace(0, 1, 40)
    phase = rng.uniform(0, 2 * np.pi)
    turns = 1 + kind % 3
    if kind < 3:
        x, y = np.cos(turns * 2 * np.pi * t + phase) * t, np.sin(turns * 2 * np.pi * t + phase)
    else:
        x, y = 2 * t - 1, np.sign(np.sin(turns * 4 * np.pi * t + phase)) * 0.6
    points = np.stack([x, y], 1) * rng.uniform(0.6, 0.9) + rng.normal(0, 0.03, (40, 2))
    return points.astype(np.float32)


class Sketches(Dataset):
    """Points of pen strokes with a label."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, KINDS, count)
        self.strokes = [make_strokes(k, rng) for k in self.labels]

    def __len__(self):
        return len(self.strokes)

    def draw(self, points):
        image = np.zeros((SIZE, SIZE), np.float32)
        pixels = (points * 0.5 + 0.5) * (SIZE - 1)
        for a, b in zip(pixels[:-1], pixels[1:]):
            for w in (0.0, 0.5, 1.0):
                x, y = a * (1 - w) + b * w
                image[min(max(int(y), 0), SIZE - 1), min(max(int(x), 0), SIZE - 1)] = 1.0
        return torch.from_numpy((image - 0.1) / 0.3).unsqueeze(0)

    def __getitem__(self, index):
        return self.draw(self.strokes[index]), int(self.labels[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 7 * 7, KINDS)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main():
    torch.manual_seed(0)
    train = DataLoader(Sketches(2000, seed=1), batch_size=64, shuffle=True)
    test = DataLoader(Sketches(400, seed=2), batch_size=200)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(1, 21):
        net.train()
        running = 0.0
        for images, labels in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        net.eval()
        with torch.no_grad():
            right = sum((net(x).argmax(1) == y).sum().item() for x, y in test)
        print(f"[{epoch:2d}] loss {running / len(train):.3f}, test accuracy {right / 400:.3f}")


if __name__ == "__main__":
    main()
