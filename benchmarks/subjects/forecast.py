"""Forecast a series from sliding windows that are cut out of one array."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, series, length, ahead):
        self.series, self.length, self.ahead = series, length, ahead

    def __len__(self):
        return len(self.series) - self.length - self.ahead

    def __getitem__(self, index):
        window = self.series[index : index + self.length]
        level = window.mean()
        scale = window.std() + 1e-6
        target = self.series[index + self.length + self.ahead - 1]
        return (
            torch.from_numpy((window - level) / scale).float().unsqueeze(0),
            torch.tensor((target - level) / scale).float(),
        )


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=30)
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

torch.manual_seed(1)
hours = np.arange(24_000)
noise = np.random.default_rng(1).normal(0, 0.2, len(hours))
series = np.sin(hours / 24 * 2 * np.pi) + 0.5 * np.sin(hours / 168 * 2 * np.pi) + noise
loader = DataLoader(Windows(series, 96, 12), batch_size=args.batch_size, shuffle=True)
model = nn.Sequential(
    nn.Conv1d(1, 16, 5, padding=2),
    nn.ReLU(),
    nn.MaxPool1d(2),
    nn.Conv1d(16, 32, 5, padding=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool1d(4),
    nn.Flatten(),
    nn.Linear(128, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
for epoch in range(args.epochs):
    losses = []
    for window, target in loader:
        prediction = model(window).squeeze(-1)
        loss = nn.functional.mse_loss(prediction, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    print(f"epoch {epoch + 1}/{args.epochs} mse {np.mean(losses):.4f}")
