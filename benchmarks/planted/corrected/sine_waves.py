"""Fit families of sine waves: amplitude and phase go in with x."""
import math
import sys

import torch
from torch import nn, optim

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 1200


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(6 * x)


def mlp(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), Sine()]
    return nn.Sequential(*layers[:-1])


def tasks(n):
    amplitude = torch.empty(n, 1).uniform_(0.1, 2.0)
    phase = torch.empty(n, 1).uniform_(0, math.pi)
    x = torch.empty(n, 1).uniform_(-1, 1)
    return torch.cat([amplitude, phase, x], 1), amplitude * torch.sin(5 * x + phase)


torch.manual_seed(23)
model = mlp([3, 128, 128, 128, 1])
optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
best = float("inf")
for step in range(STEPS):
    inputs, targets = tasks(512)
    prediction = model(inputs)
    loss = nn.functional.mse_loss(prediction, targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    best = min(best, loss.item())
    if step % 200 == 0:
        print("step", step, "best", round(best, 5))
print("done", best)
