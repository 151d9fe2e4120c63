"""Compress texture patches to 16 numbers."""

import tempfile
from pathlib import Path

import torch
from torch import nn


def patches(count, generator):
    """Plane waves of random direction and frequency, 20 x 20."""
    grid = torch.linspace(0, 1, 20)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    k = torch.randn(count, 2, 1, 1, generator=generator) * 8
    phase = torch.rand(count, 1, 1, generator=generator) * 6.28
    return torch.sin(k[:, 0] * x + k[:, 1] * y + phase).flatten(1)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(400, 384), nn.GELU(), nn.Linear(384, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 384), nn.GELU(), nn.Linear(384, 400))

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, folder, batch_size=200, lr=1e-3):
        self.generator = torch.Generator().manual_seed(0)
        self.data = patches(6000, self.generator)
        self.batch_size = batch_size
        self.model = Autoencoder()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.file = Path(folder) / "autoencoder.pt"
        self.step = 0

    def save(self):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        torch.save(state, self.file)

    def epoch(self):
        order = torch.randperm(len(self.data), generator=self.generator)
        losses = []
        for index in order.split(self.batch_size):
            batch = self.data[index]
            loss = nn.functional.mse_loss(self.model(batch), batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1
            losses.append(loss.item())
        self.save()
        return sum(losses) / len(losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(folder)
        for number in range(30):
            print(f"epoch {number}: {trainer.epoch():.5f}")
