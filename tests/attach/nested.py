"""Like the tiny script, with the loops in three functions, as many people write them."""

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset


def update(model, batch, optimizer):
    for _ in range(2):
        optimizer.zero_grad()
        model(batch[0]).square().mean().backward()
        optimizer.step()


def train_one_epoch(model, loader, optimizer):
    for batch in loader:
        update(model, batch, optimizer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(args.epochs):
        train_one_epoch(model, loader, optimizer)


if __name__ == "__main__":
    main()
