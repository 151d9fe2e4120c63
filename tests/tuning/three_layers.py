"""A script with three linear layers, large enough that leaving one out is faster.

Its learning rate is so small that no loss shows it: whether a layer learns is for the gradients to
tell.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(1280, WIDTH)
    loader = DataLoader(
        TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=32, shuffle=True
    )
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        total = 0.0
        for batch, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(batch), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total!r}")


if __name__ == "__main__":
    main()
