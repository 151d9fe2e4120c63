"""Customer churn from made-up account data.

Usage: python churn_mlp.py [--epochs N]
"""

import argparse

import numpy as np
import torch
import torch.nn as nn


def accounts(n, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 40)).astype(np.float32)
    score = x[:, 0] * 1.5 - x[:, 3] * x[:, 4] + np.abs(x[:, 7]) - 0.5
    y = (score + rng.normal(0, 0.5, n) > 0.4).astype(np.int64) + (score > 2)
    return torch.from_numpy(x), torch.from_numpy(y)


class Scores:
    """Keeps count of what was guessed."""

    def __init__(self, classes):
        self.table = [[0] * classes for _ in range(classes)]

    def update(self, logits, target):
        for i in range(len(target)):
            guess = logits[i].argmax().item()
            self.table[target[i].item()][guess] += 1

    def accuracy(self):
        right = sum(self.table[k][k] for k in range(len(self.table)))
        return right / max(1, sum(map(sum, self.table)))

    def recall(self):
        return [row[k] / max(1, sum(row)) for k, row in enumerate(self.table)]


def build():
    return nn.Sequential(
        nn.Linear(40, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(256, 3),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    x, y = accounts(8192, seed=5)
    model = build()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        scores = Scores(3)
        for chunk in torch.randperm(len(x)).split(128):
            logits = model(x[chunk])
            loss = criterion(logits, y[chunk])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scores.update(logits.detach(), y[chunk])
        recalls = " ".join(f"{r:.2f}" for r in scores.recall())
        print(f"{epoch:3d}  accuracy {scores.accuracy():.3f}  recall {recalls}")


if __name__ == "__main__":
    main()
