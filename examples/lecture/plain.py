"""Classify clothes with everything that an advanced lecture teaches, the way it teaches it.

python plain.py --epochs 10
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[1] / "fashion_mnist"))

from data import find
from plain import FashionMNIST, mlp

ACCUMULATE = 4
CHECKPOINT = "checkpoint.pth"


def forward(model: nn.Module, images: torch.Tensor, device: str) -> torch.Tensor:
    with torch.autocast(device, dtype=torch.bfloat16):
        return model(images)


def train(
    model: nn.Module,
    loader: DataLoader,
    loss_fn: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: str,
) -> float:
    model.train()
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    running_loss = 0.0
    for index, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        loss = loss_fn(forward(model, images, device).float(), labels) / ACCUMULATE
        scaler.scale(loss).backward()
        if index % ACCUMULATE == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        running_loss += loss.item() * ACCUMULATE
    return running_loss / len(loader)


def test(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            predictions = forward(model, images, device).argmax(dim=1)
            correct += (predictions == labels).sum().item()
    return 100 * correct / len(loader.dataset)


def peak_memory(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler on a CPU")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = find()
    pin = device == "cuda"
    training, held_out = FashionMNIST(folder, train=True), FashionMNIST(folder, train=False)
    train_loader = DataLoader(training, batch_size=64, shuffle=True, pin_memory=pin)
    test_loader = DataLoader(held_out, batch_size=64, pin_memory=pin)

    model = mlp().to(device)
    if args.compile:
        model = torch.compile(model, mode="reduce-overhead")
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    begin = 0
    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        begin = checkpoint["epoch"] + 1

    for epoch in range(begin, args.epochs):
        start = time.perf_counter()
        loss = train(model, train_loader, loss_fn, optimizer, device)
        scheduler.step()
        score = test(model, test_loader, device)
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}: loss {loss:.6f}, test accuracy {score:.2f} %, {seconds:.1f} s, "
            f"peak {peak_memory(device):.0f} MiB"
        )
        if (epoch + 1) % 5 == 0:
            torch.save(
                {
                    "epoch": epoch,
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                },
                CHECKPOINT,
            )


if __name__ == "__main__":
    main()
