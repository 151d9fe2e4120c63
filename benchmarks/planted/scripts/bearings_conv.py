"""Damage of ball bearings from vibration, with batch norm and dropout."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BearingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv1d(1, 24, 9, padding=4)
        self.bn1 = nn.BatchNorm1d(24)
        self.conv2 = nn.Conv1d(24, 32, 9, padding=4)
        self.bn2 = nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(32 * 16, 3)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.bn1(self.conv1(x))), 4)
        x = F.max_pool1d(F.relu(self.bn2(self.conv2(x))), 2)
        return self.fc(self.drop(x.flatten(1)))


def vibration(n):
    damage = torch.randint(0, 3, (n,))
    t = torch.arange(128)
    period = torch.tensor([1000.0, 23.0, 14.0])[damage].unsqueeze(1)
    hits = torch.cos(2 * math.pi * (t / period + torch.rand(n, 1))).clamp(min=0.9) - 0.9
    return (torch.randn(n, 128) * 0.6 + 15 * hits).unsqueeze(1), damage


def validate(model, x, y):
    model.eval()
    with torch.no_grad():
        out = model(x)
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


def fit(epochs=12, batch=40):
    torch.manual_seed(29)
    x, y = vibration(2000)
    vx, vy = vibration(400)
    model = BearingNet()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        valid, accuracy = validate(model, vx, vy)
        print(f"epoch {epoch}: train {loss.item():.3f}, valid {valid:.3f}, {accuracy:.1%} right")


if __name__ == "__main__":
    fit()
