"""Value of a (made up) chess position."""

import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, planes=12, channels=32, blocks=2):
        super().__init__()
        self.start = nn.Conv2d(planes, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()) for _ in range(blocks)
        )
        self.value = nn.Linear(channels * 64, 1)

    def forward(self, x):
        x = torch.relu(self.start(x))
        for block in self.blocks:
            x = x + block(x)
        return torch.tanh(self.value(x.flatten(1))).squeeze(1)


def positions(n):
    boards = (torch.rand(n, 12, 8, 8) < 0.04).float()
    worth = torch.tensor([1.0, 3, 3, 5, 9, 0, -1, -3, -3, -5, -9, 0])
    material = (boards.sum((2, 3)) * worth).sum(1)
    return boards, torch.tanh(material / 10)


def main():
    torch.manual_seed(100)
    boards, values = positions(6400)
    tower = Tower()
    optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-3, fused=True)
    for epoch in range(8):
        for rows in torch.randperm(len(boards)).split(128):
            loss = nn.functional.mse_loss(tower(boards[rows]), values[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, "mse", f"{loss.item():.4f}")


if __name__ == "__main__":
    main()
