"""Charge state of ions from mass spectra."""

import torch
from torch import nn

BINS, STATES = 256, 5
torch.manual_seed(61)


def spectra(n):
    z = torch.randint(0, STATES, (n,))
    k = torch.arange(BINS) / (8.0 / (z + 1.0)).unsqueeze(1)
    comb = torch.cos(2 * torch.pi * (k + torch.rand(n, 1))).clamp(min=0.8) - 0.8
    return comb * 5 + 0.5 * torch.randn(n, BINS), z


x, z = spectra(6000)
test_x, test_z = spectra(1000)
model = nn.Sequential(
    nn.Linear(BINS, 128),
    nn.ReLU(),
    nn.Linear(128, 128),
    nn.ReLU(),
    nn.Linear(128, STATES),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu")
for epoch in range(12):
    right = 0
    for rows in torch.randperm(len(x)).split(60):
        with torch.autocast("cpu", dtype=torch.float16):
            scores = model(x[rows])
            loss = nn.functional.cross_entropy(scores, z[rows])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        right += (scores.argmax(1) == z[rows]).sum().item()
    with torch.no_grad():
        test = (model(test_x).argmax(1) == test_z).float().mean().item()
    print(f"{epoch:3d} {loss.item():.3f} train {right / len(x):.3f} test {test:.3f}")
