"""Learn to continue text that is read piece by piece, never in memory whole.

python plain.py --epochs 2 --workers 2
"""

import argparse
import os
import random
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

PIECE = 2**14
MOST_PIECES = 24
HELD_OUT_EVERY = 8
LENGTH = 64


def find() -> list[Path]:
    """Return text files: those of `$HOTLAP_DATA`, or the source of Python's own library."""
    given = os.environ.get("HOTLAP_DATA")
    found = sorted(Path(given).glob("*.txt")) if given else []
    return found or sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


class Text(IterableDataset):
    """Gives (characters, the characters that follow them), int64, shape (LENGTH,) each."""

    def __init__(self, files: list[Path], train: bool, buffer: int = 0) -> None:
        self.files, self.train, self.buffer = files, train, buffer

    def pieces(self) -> Iterator[bytes]:
        number = 0
        for path in self.files:
            with path.open("rb") as file:
                while number < MOST_PIECES and (piece := file.read(PIECE)):
                    number += 1
                    if self.train == (number % HELD_OUT_EVERY != 0):
                        yield piece

    def samples(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        info = get_worker_info()
        for number, piece in enumerate(self.pieces()):
            if info is not None and number % info.num_workers != info.id:
                continue
            for start in range(0, len(piece) - LENGTH, LENGTH):
                codes = torch.tensor(list(piece[start : start + LENGTH + 1]))
                yield codes[:-1], codes[1:]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        held = []
        for sample in self.samples():
            held.append(sample)
            if len(held) > self.buffer:
                yield held.pop(random.randrange(len(held)))
        random.shuffle(held)
        yield from held


class Reader(nn.Module):
    def __init__(self, size: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, size)
        self.recurrent = nn.GRU(size, size, batch_first=True)
        self.output = nn.Linear(size, 256)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(self.embedding(codes))
        return self.output(states)


def loss_of(model: nn.Module, codes: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(codes).flatten(0, 1), following.flatten())


def train_one_epoch(
    model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer, device: str
) -> float:
    model.train()
    running_loss, batches = 0.0, 0
    for codes, following in loader:
        codes, following = codes.to(device), following.to(device)
        optimizer.zero_grad()
        loss = loss_of(model, codes, following)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        batches += 1
    return running_loss / batches


def evaluate(model: nn.Module, loader: DataLoader, device: str) -> float:
    model.eval()
    running_loss, batches = 0.0, 0
    with torch.no_grad():
        for codes, following in loader:
            running_loss += loss_of(model, codes.to(device), following.to(device)).item()
            batches += 1
    return running_loss / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    random.seed(args.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    files = find()
    training, held_out = Text(files, train=True, buffer=1000), Text(files, train=False)
    train_loader = DataLoader(training, batch_size=32, num_workers=args.workers)
    test_loader = DataLoader(held_out, batch_size=32)

    model = Reader().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train_one_epoch(model, train_loader, optimizer, device)
        seconds = time.perf_counter() - start
        score = evaluate(model, test_loader, device)
        print(f"epoch {epoch + 1}: loss {loss:.6f}, held-out loss {score:.6f}, {seconds:.1f} s")


if __name__ == "__main__":
    main()
