"""Distance of an earthquake from three components of ground motion."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, 24, 7, padding=3), nn.ReLU(), nn.MaxPool1d(4),
            nn.Conv1d(24, 32, 7, padding=3), nn.ReLU(), nn.MaxPool1d(4),
        )

    def forward(self, x):
        return self.net(x)


class Distance(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder()
        self.regress = nn.Sequential(nn.Linear(32 * 10, 96), nn.ReLU(), nn.Linear(96, 1))

    def forward(self, x):
        code = self.encoder(x)
        return self.regress(code.flatten(1)).squeeze(1)


def quakes(n):
    t = torch.arange(160).float()
    distance = torch.rand(n)
    p = (20 + 10 * torch.rand(n, 1, 1)).expand(n, 3, 1)
    s = p + 15 + 80 * distance.view(n, 1, 1)
    weight = torch.rand(n, 3, 1) + 0.3
    wave = torch.randn(n, 3, 160)
    motion = wave * (0.15 + weight * ((t > p) * torch.exp((p - t) / 25) + 2 * (t > s) * torch.exp((s - t) / 30)))
    return motion, distance * 2 - 1


torch.manual_seed(38)
motion, distance = quakes(2400)
model = Distance()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(15):
    off = 0.0
    for rows in torch.randperm(len(motion)).split(48):
        guess = model(motion[rows])
        loss = nn.functional.mse_loss(guess, distance[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        off += (guess.detach() - distance[rows]).abs().sum().item()
    print(f"epoch {epoch}: off by {off / len(motion):.3f}")
