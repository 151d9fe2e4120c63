"""Potholes in road pictures. Batches of 16, updates of 64."""

import torch
from torch import nn
import torch.nn.functional as F

ACCUMULATE = 4


def roads(n):
    road = torch.randn(n, 1, 24, 24) * 0.5
    y = torch.randint(0, 2, (n,))
    for i in torch.nonzero(y).flatten().tolist():
        r, c = torch.randint(2, 16, (2,)).tolist()
        road[i, 0, r : r + 5, c : c + 5] -= 0.8
    return road, y


class RoadNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 5, padding=2)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32, 2)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.relu(self.c2(x))
        return self.fc(x.amax((2, 3)))


torch.manual_seed(0)
x, y = roads(1920)
net = RoadNet()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
for epoch in range(15):
    batches = torch.randperm(len(x)).split(16)
    total = 0.0
    optimizer.zero_grad()
    for i, rows in enumerate(batches):
        loss = F.cross_entropy(net(x[rows]), y[rows])
        (loss / ACCUMULATE).backward()
        if (i + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
        total += loss.item()
    print(f"epoch {epoch}: {total / len(batches):.4f}")
