import argparse
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils import data


class TextureArchive(data.Dataset):
    """Images and their labels in one .npz file."""

    def __init__(self, path):
        self.path = path
        with np.load(path) as archive:
            self.labels = archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        with np.load(self.path) as archive:
            image = archive["images"][i]
        return torch.from_numpy(image.astype(np.float32) / 127.5 - 1).unsqueeze(0), self.labels[i]


def build_archive(path, n=800, side=24):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, n)
    grid = np.arange(side)
    images = np.empty((n, side, side), np.uint8)
    for i, label in enumerate(labels):
        k = rng.uniform(0.4, 1.2)
        u = [grid[:, None], grid[None, :], grid[:, None] + grid, grid[:, None] - grid][label]
        wave = np.sin(k * u + rng.uniform(0, 6)) + rng.normal(0, 0.7, (side, side))
        images[i] = np.clip(127 + 60 * wave, 0, 255)
    np.savez(path, images=images, labels=labels)


class ConvNet(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, channels, 5, stride=1, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.head = nn.Linear(2 * channels * 36, 4)

    def forward(self, x):
        return self.head(torch.flatten(self.body(x), 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="directions of textures")
    parser.add_argument("-e", "--epochs", type=int, default=25)
    parser.add_argument("-b", "--batch-size", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "textures.npz")
        build_archive(path)
        loader = data.DataLoader(TextureArchive(path), args.batch_size, shuffle=True)
        net = ConvNet(12)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        for epoch in range(args.epochs):
            for step, (x, y) in enumerate(loader):
                loss = nn.functional.cross_entropy(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: {loss.item():.3f}", flush=True)
