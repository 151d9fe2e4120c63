"""Classify clothes (FashionMNIST), the way a first lecture on PyTorch does it.

python plain.py --model mlp --epochs 3
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch
from data import find, load
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class FashionMNIST(Dataset):
    def __init__(self, folder: Path | None, train: bool) -> None:
        images, labels = load(folder, train=train)
        self.images = torch.from_numpy(images.copy())
        self.labels = torch.from_numpy(labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.fromarray(self.images[index].numpy())
        pixels = torch.from_numpy(np.array(image, dtype=np.uint8, copy=True))
        pixels = pixels.view(image.size[1], image.size[0], 1).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div(255), int(self.labels[index])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(28 * 28, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def train_one_epoch(
    model: nn.Module,
    loader: DataLoader,
    loss_fn: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
) -> float:
    model.train()
    running_loss = 0.0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = loss_fn(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return running_loss / len(loader)


def accuracy(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            predictions = model(images).argmax(dim=1)
            correct += (predictions == labels).sum().item()
    return 100 * correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["mlp", "cnn"], default="mlp")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=None, help="folder of the FashionMNIST files")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = args.data or find()
    if folder is None:
        print(
            "FashionMNIST is not here: using scikit-learn's digits. `data.py --fetch` gets it.",
            file=sys.stderr,
        )

    train_loader = DataLoader(FashionMNIST(folder, train=True), batch_size=64, shuffle=True)
    test_loader = DataLoader(FashionMNIST(folder, train=False), batch_size=64)
    model = (mlp() if args.model == "mlp" else cnn()).to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(1, args.epochs + 1):
        start = time.perf_counter()
        loss = train_one_epoch(model, train_loader, loss_fn, optimizer, device)
        score = accuracy(model, test_loader, device)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}: loss {loss:.6f}, test accuracy {score:.2f} %, {seconds:.1f} s")


if __name__ == "__main__":
    main()
