"""A training script that starts in a second and a half: what every test with real trials runs."""

import argparse
import importlib
import random
import sys
import time
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NoCompiler(ModuleType):
    """Stands for `torch._dynamo` until more of it is asked for than to leave functions alone.

    Every optimizer imports it for that, which takes as long as to import torch.
    """

    @staticmethod
    def disable(function: Any, *_: Any, **__: Any) -> Any:
        return function

    @staticmethod
    def graph_break() -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name in ("__file__", "__spec__"):
            raise AttributeError(name)
        sys.modules.pop(self.__name__, None)
        return getattr(importlib.import_module(self.__name__), name)


class Items(Dataset):
    """Samples that are made anew each time they are asked for, as decoding does."""

    def __init__(self, count: int, augment: bool) -> None:
        self.pixels = torch.arange(count * 64, dtype=torch.float32).reshape(count, 1, 8, 8)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        sample = self.pixels[index].sin().mul(3).add(1).div(4)
        if self.augment:
            sample = sample + random.random()
        return sample, index % 10


def build(kind: str) -> nn.Module:
    if kind == "cnn":
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--optimizer", default="Adam")
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--unseeded", action="store_true")
    parser.add_argument("--fault", default="")
    parser.add_argument("--save", default="")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.fault == "missing_module":
        import a_module_that_is_not_there  # noqa: F401
    if not args.unseeded:
        torch.manual_seed(0)
        random.seed(0)
    loader = DataLoader(Items(args.samples, args.augment), batch_size=16, shuffle=True)
    held_out = DataLoader(Items(32, False), batch_size=16)
    model = build(args.model).to(args.device)
    optimizer = getattr(torch.optim, args.optimizer)(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        fault(args.fault, epoch)
        model.train()
        total = 0.0
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs.to(args.device)), labels.to(args.device))
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            right = sum(
                int((model(x.to(args.device)).argmax(1) == y.to(args.device)).sum())
                for x, y in held_out
            )
        print(f"epoch {epoch}: loss {total!r}, right {right}")
    if args.save:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, args.save)
    print(torch.rand(1).item(), random.random())


def fault(kind: str, epoch: int) -> None:
    if kind == "crash":
        raise ValueError("the script crashes")
    if kind == "hang" or (kind == "hang_later" and epoch == 1):
        time.sleep(600)
    if kind == "no_training":
        sys.exit(0)
    if kind == "spam":
        for _ in range(100):
            print("x" * 2**20)
    if kind == "memory":
        keep = torch.ones(2**28)
        time.sleep(5)
        del keep


if __name__ == "__main__":
    sys.modules.setdefault("torch._dynamo", NoCompiler("torch._dynamo"))
    main()
