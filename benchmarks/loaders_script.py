"""Trains a small network from one kind of DataLoader: `loaders_script.py KIND [--by-hand]`.

By hand, samples are decoded once, where they are the same in every epoch.
"""

import argparse
import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

SAMPLES = 6_000
BATCH = 100
EPOCHS = 8


class Drawings(Dataset):
    """Compressed images and their labels."""

    def __init__(self, is_augmented, is_by_hand):
        rows, columns = np.mgrid[:28, :28]
        self.files, self.labels = [], []
        draw = np.random.default_rng(0)
        for index in range(SAMPLES):
            y, x = draw.uniform(8, 20, 2)
            radius = 3 + index % 10
            pixels = (np.hypot(rows - y, columns - x) < radius).astype(np.uint8) * 255
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, format="png")
            self.files.append(file.getvalue())
            self.labels.append(index % 10)
        self.is_augmented = is_augmented
        self.images = None
        if is_by_hand:
            self.images = torch.stack([self.decode(index) for index in range(SAMPLES)])

    def __len__(self):
        return SAMPLES

    def decode(self, index):
        with Image.open(io.BytesIO(self.files[index])) as image:
            return torch.from_numpy(np.array(image)).float().div(255)

    def __getitem__(self, index):
        image = self.decode(index) if self.images is None else self.images[index]
        if self.is_augmented:
            if torch.rand(()) < 0.5:
                image = image.flip(1)
            image = image + 0.05 * torch.randn(28, 28)
        return image, self.labels[index]


class Balanced(Sampler):
    """Draws as many samples of every label, from a generator of its own."""

    def __init__(self, labels):
        self.of = [np.flatnonzero(np.array(labels) == label) for label in range(10)]
        self.draw = np.random.default_rng(1)

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        for label in self.draw.integers(0, 10, SAMPLES):
            yield int(self.draw.choice(self.of[label]))


class Blocks(Sampler):
    """Gives batches of neighbors, in an order that is drawn for each epoch."""

    def __len__(self):
        return SAMPLES // BATCH

    def __iter__(self):
        for block in torch.randperm(SAMPLES // BATCH).tolist():
            yield list(range(block * BATCH, block * BATCH + BATCH))


def collate(samples):
    images, labels = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(labels)


def loader_of(kind, data):
    if kind == "generator":
        return DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))
    if kind == "sampler":
        return DataLoader(data, BATCH, sampler=Balanced(data.labels))
    if kind == "batch sampler, own collate":
        return DataLoader(data, batch_sampler=Blocks(), collate_fn=collate)
    if kind == "WeightedRandomSampler":
        weights = [1.0 + label for label in data.labels]
        sampler = torch.utils.data.WeightedRandomSampler(weights, SAMPLES)
        return DataLoader(data, BATCH, sampler=sampler)
    if kind == "augmented":
        return DataLoader(data, BATCH, shuffle=True)
    workers = {"num_workers": 2, "persistent_workers": "persistent" in kind}
    return DataLoader(data, BATCH, shuffle=True, **workers)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--by-hand", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(1)
    data = Drawings("augmented" in args.kind, args.by_hand)
    loader = loader_of(args.kind, data)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(EPOCHS):
        total = 0.0
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.6f}", flush=True)


if __name__ == "__main__":
    main()
