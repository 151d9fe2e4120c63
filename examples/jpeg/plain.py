"""Classify a folder of JPEG files, decoded and augmented for every sample, as people write it.

python plain.py --epochs 3
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from data import files, find
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

PADDING = 4


class ImageFolder(Dataset):
    def __init__(self, folder: Path, train: bool, transform=None) -> None:
        self.samples = files(folder, train=train)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        with Image.open(path) as file:
            image = file.convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return to_tensor(image), label


def random_crop_and_flip(image: Image.Image) -> Image.Image:
    width, height = image.size
    left, top = random.randint(0, 2 * PADDING), random.randint(0, 2 * PADDING)
    image = ImageOps.expand(image, PADDING).crop((left, top, left + width, top + height))
    if random.random() < 0.5:
        image = ImageOps.mirror(image)
    return image


def to_tensor(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def accuracy(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            predictions = model(images.to(device)).argmax(dim=1)
            correct += (predictions == labels.to(device)).sum().item()
    return 100 * correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=None, help="folder of class folders")
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = args.data or find()
    train = ImageFolder(folder, train=True, transform=random_crop_and_flip)
    test = ImageFolder(folder, train=False)
    train_loader = DataLoader(train, batch_size=64, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(test, batch_size=64, num_workers=args.workers)
    model = network().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        model.train()
        running_loss = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = loss_fn(model(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
        score = accuracy(model, test_loader, device)
        loss = running_loss / len(train_loader)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {loss:.6f}, test accuracy {score:.2f} %, {seconds:.1f} s")


if __name__ == "__main__":
    main()
