"""Opening of valves from pressures in a pipe network; a ridge penalty keeps weights small."""

import torch
from torch import nn

PENALTY = 1e-4


class Section(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Linear(width, width)
        self.b = nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(torch.tanh(self.a(x))) / 4


class Network(nn.Module):
    def __init__(self, inputs=32, outputs=8, width=48, depth=20):
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.sections = nn.ModuleList([Section(width) for _ in range(depth)])
        self.leave = nn.Linear(width, outputs)

    def forward(self, x):
        x = self.enter(x)
        for section in self.sections:
            x = section(x)
        return self.leave(x)


def pipes(n):
    opening = torch.rand(n, 8)
    conductance = torch.randn(8, 32).abs()
    pressure = torch.log1p(opening @ conductance)
    pressure = (pressure - pressure.mean(0)) / pressure.std(0)
    return pressure + 0.02 * torch.randn_like(pressure), opening


def ridge(model):
    total = 0.0
    for p in model.parameters():
        total = total + (p**2).sum()
    return PENALTY * total


def main(epochs=18):
    torch.manual_seed(70)
    pressure, opening = pipes(6000)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True)
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(pressure)).split(75):
            fit = nn.functional.mse_loss(model(pressure[rows]), opening[rows])
            optimizer.zero_grad()
            (fit + ridge(model)).backward()
            optimizer.step()
            total += fit.item() * len(rows)
        print(f"epoch {epoch + 1:2d}/{epochs}: {total / len(pressure):.5f}")


if __name__ == "__main__":
    main()
