"""Embed (synthetic) faces so that one person's pictures are close to each other."""

import torch
from torch import nn


class Embedder(nn.Module):
    def __init__(self, size=64, out=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, out)
        )

    def forward(self, x):
        return nn.functional.normalize(self.net(x), dim=1)


class HardTriplets(nn.Module):
    """The farthest picture of the same person against the nearest one of anybody else."""

    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    def forward(self, z, person):
        distance = torch.cdist(z, z)
        same = person[:, None] == person[None, :]
        farthest = distance.masked_fill(~same, 0.0).amax(1)
        nearest = distance.masked_fill(same, float("inf")).amin(1)
        return torch.relu(farthest - nearest + self.margin).mean()


class People:
    def __init__(self, persons, size=64):
        self.identity = torch.randn(persons, size)
        self.style = torch.randn(8, size)

    def batch(self, persons=8, each=4):
        who = torch.randperm(len(self.identity))[:persons].repeat_interleave(each)
        mood = torch.randn(len(who), 8)
        pictures = self.identity[who] + mood @ self.style * 0.7
        return torch.tanh(pictures), who


def main():
    torch.manual_seed(64)
    people = People(200)
    model, criterion = Embedder(), HardTriplets()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    average = 0.0
    for step in range(1, 1201):
        pictures, who = people.batch()
        loss = criterion(model(pictures), who)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average += loss.item()
        if step % 100 == 0:
            print(f"{step}: {average / 100:.4f}")
            average = 0.0


if __name__ == "__main__":
    main()
