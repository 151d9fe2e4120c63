"""Oxygen in lakes. Can be interrupted: state is kept in a file beside the data."""

import argparse
import pathlib
import tempfile

import torch
from torch import nn


def lakes(n):
    x = torch.randn(n, 18)
    oxygen = torch.sigmoid(x[:, 0] - x[:, 1]) * 2 - 0.5 * x[:, 2].abs() + 0.1 * torch.randn(n)
    return x, oxygen - oxygen.mean()


def save(path, model, optimizer, epoch):
    torch.save(
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path
    )


def load(path, model, optimizer):
    if not path.exists():
        return 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"] + 1


def train(folder, epochs, batch=100):
    torch.manual_seed(56)
    x, oxygen = lakes(6000)
    model = nn.Sequential(
        nn.Linear(18, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)
    path = folder / "lakes.pt"
    for epoch in range(load(path, model, optimizer), epochs):
        for rows in torch.randperm(len(x)).split(batch):
            loss = nn.functional.mse_loss(model(x[rows]), oxygen[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        save(path, model, optimizer, epoch)
        print(f"epoch {epoch} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--folder", type=pathlib.Path)
    args = parser.parse_args()
    if args.folder is not None:
        train(args.folder, args.epochs)
    else:
        with tempfile.TemporaryDirectory() as folder:
            train(pathlib.Path(folder), args.epochs)
