"""Training loops with habits that real ones have: short, slow, dying, made again in each epoch."""

import random
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

HABIT, STEPS = sys.argv[1], int(sys.argv[2])


class Made(Dataset):
    """Samples that are made up each time, with numbers drawn: nobody can keep them."""

    def __len__(self) -> int:
        return 16 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.0005)
        return torch.rand(8) + random.random(), index % 4


def build() -> nn.Module:
    if HABIT == "sparse":
        table = nn.Embedding(100_000, 64, sparse=True)
        return nn.Sequential(table, nn.Linear(64, 4))
    model = nn.Linear(8, 4)
    return nn.DataParallel(model) if HABIT == "wrapped" else model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    if HABIT == "sparse":
        return torch.optim.SparseAdam(model[0].parameters())
    return torch.optim.Adam(model.parameters(), lr=0.01)


def take_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> None:
    if HABIT == "slow":
        time.sleep(1.0)
    (model if HABIT == "by_hand" else optimizer).zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    if HABIT == "by_hand":
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.1)
        return
    optimizer.step()


def evaluate(model: nn.Module, data: TensorDataset) -> None:
    model.eval()
    with torch.no_grad():
        for inputs, _ in DataLoader(data, batch_size=8):
            model(inputs)
    model.train()


def fault(step: int) -> None:
    if step == 6 and HABIT == "memory":
        torch.empty(10**14)
    if step == 6 and HABIT == "exit":
        sys.exit(3)


def main() -> None:
    model = build()
    optimizer = optimizer_of(model)
    inputs, labels = torch.randn(16, 8), torch.randint(0, 4, (16,))
    if HABIT == "sparse":
        inputs, labels = torch.randint(0, 100_000, (2048,)), torch.randint(0, 4, (2048,))
    if HABIT == "made":
        for inputs, labels in DataLoader(Made(), batch_size=16):
            take_step(model, optimizer, inputs, labels)
    elif HABIT == "evaluates":
        data = TensorDataset(inputs.repeat(STEPS, 1), labels.repeat(STEPS))
        for step, batch in enumerate(DataLoader(data, batch_size=16)):
            if step % 20 == 3:
                evaluate(model, data)
            take_step(model, optimizer, *batch)
            if step % 20 == 0:
                evaluate(model, data)
    elif HABIT == "evaluates_first":
        evaluate(model, TensorDataset(inputs.repeat(4, 1), labels.repeat(4)))
        for _ in range(STEPS):
            take_step(model, optimizer, inputs, labels)
    elif HABIT == "renewed":
        for _ in range(4):
            optimizer = optimizer_of(model)
            for _ in range(STEPS // 4):
                take_step(model, optimizer, inputs, labels)
    elif HABIT == "while":
        done = 0
        while done < STEPS:
            take_step(model, optimizer, inputs, labels)
            done += 1
    else:
        for step in range(STEPS):
            fault(step)
            take_step(model, optimizer, inputs, labels)


main()
