"""Cross-validation: a new model, optimizer and loader for each of five folds."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset


class Measurements(Dataset):
    def __init__(self, count):
        draw = np.random.default_rng(3)
        self.frame = [
            {"values": draw.normal(size=24).tolist(), "target": float(draw.normal())}
            for _ in range(count)
        ]

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, index):
        row = self.frame[index]
        return torch.tensor(row["values"]), torch.tensor([row["target"]])


def train_fold(number, train, valid, epochs):
    torch.manual_seed(number)
    model = nn.Sequential(nn.Linear(24, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh())
    model.append(nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(train, batch_size=64, shuffle=True)
    for _ in range(epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.smooth_l1_loss(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    model.eval()
    with torch.no_grad():
        errors = [nn.functional.l1_loss(model(x), y).item() for x, y in DataLoader(valid, 256)]
    return sum(errors) / len(errors)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    data = Measurements(20_000)
    order = np.random.default_rng(0).permutation(len(data))
    for number, held in enumerate(np.array_split(order, 5)):
        rest = np.setdiff1d(order, held)
        error = train_fold(number, Subset(data, rest), Subset(data, held), args.epochs)
        print(f"fold {number}: {error:.4f}")


if __name__ == "__main__":
    main()
