"""Predict defaults from a table of numbers, standardized row by row."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Table(Dataset):
    def __init__(self, rows, labels):
        self.rows = rows
        self.labels = labels
        self.mean = rows.mean(axis=0)
        self.std = rows.std(axis=0)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = (self.rows[index] - self.mean) / self.std
        return torch.tensor(row, dtype=torch.float32), torch.tensor(
            self.labels[index], dtype=torch.float32
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    rows = rng.normal(3.0, 2.0, (40_000, 48))
    labels = (rows[:, :8].sum(axis=1) + rng.normal(0, 4, len(rows)) > 24).astype(np.float64)
    train = DataLoader(Table(rows[:36_000], labels[:36_000]), batch_size=128, shuffle=True)
    test = DataLoader(Table(rows[36_000:], labels[36_000:]), batch_size=512)

    model = nn.Sequential(
        nn.Linear(48, 256),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in test:
                right += ((model(x).squeeze(1) > 0) == (y > 0.5)).sum().item()
        print(f"epoch {epoch}: loss {running / len(train):.4f}, accuracy {right / 4000:.4f}")


if __name__ == "__main__":
    main()
