"""Which account does an invoice belong to?"""

import argparse

import numpy as np
import torch
from torch import nn


def invoices(n, rng):
    x = rng.normal(size=(n, 60)).astype("float32")
    y = (x[:, :12].reshape(n, 4, 3).sum(2) + 0.3 * rng.normal(size=(n, 4))).argmax(1)
    return torch.from_numpy(x), torch.from_numpy(y)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.x, self.y = invoices(5000, np.random.default_rng(3))
        self.model = nn.Sequential(
            nn.Linear(60, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=args.lr)

    def train_epoch(self):
        n = self.args.accumulate
        self.optimizer.zero_grad()
        losses = []
        for number, rows in enumerate(torch.randperm(len(self.x)).split(self.args.batch_size), 1):
            loss = nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])
            (loss / n).backward()
            losses.append(loss.item())
            if number % n == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return np.mean(losses)

    def train(self):
        for epoch in range(self.args.epochs):
            print("epoch", epoch, "loss %.4f" % self.train_epoch())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=8)
    parser.add_argument("--lr", type=float, default=2e-3)
    torch.manual_seed(3)
    Trainer(parser.parse_args()).train()
