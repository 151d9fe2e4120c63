"""Classify clothes with everything that an advanced lecture teaches, the way it teaches it.

python plain.py --epochs 10

`recipe.py` is the same task done right.
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
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.float16 if DEVICE == "cuda" else torch.bfloat16


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp()

    @torch.autocast(device_type=DEVICE, dtype=DTYPE)
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def train(
    model: nn.Module,
    loader: DataLoader,
    loss_fn: nn.Module,
    optimizer: torch.optim.Optimizer,
) -> float:
    model.train()
    scaler = torch.amp.GradScaler(DEVICE)
    optimizer.zero_grad()
    running_loss = 0.0
    for index, (images, labels) in enumerate(loader):
        images, labels = images.to(DEVICE), labels.to(DEVICE)
        loss = loss_fn(model(images), labels)
        scaler.scale(loss).backward()
        if index % ACCUMULATE == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        running_loss += loss.item()
    return running_loss / len(loader)


def test(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(DEVICE), labels.to(DEVICE)
            correct += (model(images).argmax(dim=1) == labels).sum().item()
    return 100 * correct / len(loader.dataset)


def peak_memory() -> float:
    if DEVICE == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10, help="beyond those of the checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="needs a C++ compiler on a CPU")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    folder = find()
    pin = DEVICE == "cuda"
    training, held_out = FashionMNIST(folder, train=True), FashionMNIST(folder, train=False)
    train_loader = DataLoader(training, batch_size=64, shuffle=True, pin_memory=pin)
    test_loader = DataLoader(held_out, batch_size=64, pin_memory=pin)

    model = Classifier().to(DEVICE)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    if os.path.exists(CHECKPOINT):
        checkpoint = torch.load(CHECKPOINT, weights_only=False)
        model.load_state_dict(checkpoint["model_state"])
        optimizer.load_state_dict(checkpoint["optimizer_state"])
        scheduler.load_state_dict(checkpoint["scheduler_state"])
    if args.compile:
        model.compile(mode="reduce-overhead")

    begin = scheduler.last_epoch
    for epoch in range(begin, begin + args.epochs):
        start = time.perf_counter()
        loss = train(model, train_loader, loss_fn, optimizer)
        scheduler.step()
        score = test(model, test_loader)
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}: loss {loss:.6f}, test accuracy {score:.2f} %, {seconds:.1f} s, "
            f"peak {peak_memory():.0f} MiB"
        )
        if (epoch + 1) % 5 == 0:
            torch.save(
                {
                    "model_state": model.state_dict(),
                    "optimizer_state": optimizer.state_dict(),
                    "scheduler_state": scheduler.state_dict(),
                },
                CHECKPOINT,
            )


if __name__ == "__main__":
    main()
