"""Porosity of rock from well logs. All rows are on hand, so batches are plain indexing."""

import argparse

import torch
from torch import nn


def logs(n):
    x = torch.randn(n, 30)
    hidden = torch.tanh(x @ torch.randn(30, 8) / 3)
    return x, (hidden @ torch.randn(8, 1)).squeeze(1) + 0.05 * torch.randn(n)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(9)
    x, y = logs(11_000)
    train_x, train_y, test_x, test_y = x[:10_000], y[:10_000], x[10_000:], y[10_000:]
    model = nn.Sequential(
        nn.Linear(30, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(args.epochs):
        model.train()
        for rows in torch.randperm(len(train_x)).split(args.batch_size):
            loss = nn.functional.mse_loss(model(train_x[rows]), train_y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.inference_mode():
            test = nn.functional.mse_loss(model(test_x), test_y).item()
        print(f"epoch {epoch}: train {loss.item():.4f} test {test:.4f}")


if __name__ == "__main__":
    main()
