"""Pulse shapes of a particle detector: electron, gamma or noise?"""

import torch
from torch import nn


class PulseNet(nn.Module):
    """Takes one pulse, channels x time."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(2, 16, 7, padding=3), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(), nn.AdaptiveMaxPool1d(4),
        )
        self.classify = nn.Linear(128, 3)

    def forward(self, pulse):
        return self.classify(self.features(pulse).flatten())


def pulses(n):
    t = torch.linspace(0, 1, 128)
    kind = torch.randint(0, 3, (n,))
    rise = torch.tensor([0.02, 0.06, 0.5])[kind].unsqueeze(1)
    start = torch.rand(n, 1) * 0.4
    age = (t - start).clamp(min=0)
    shape = (age / rise) * torch.exp(1 - age / rise)
    both = torch.stack([shape, 0.5 * shape.roll(3, 1)], 1)
    return both + 0.2 * torch.randn(n, 2, 128), kind


if __name__ == "__main__":
    torch.manual_seed(17)
    x, y = pulses(4096)
    net = PulseNet()
    sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
    size = 16
    for epoch in range(6):
        order = torch.randperm(len(x))
        correct = 0
        for begin in range(0, len(x), size):
            chosen = order[begin : begin + size]
            scores = torch.stack([net(x[i]) for i in chosen])
            loss = nn.functional.cross_entropy(scores, y[chosen])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            correct += int((scores.argmax(1) == y[chosen]).sum())
        print("epoch", epoch, "accuracy", correct / len(x))
