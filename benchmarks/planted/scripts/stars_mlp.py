"""Spectral class of stars. Written for several nodes; on one it runs as rank 0 of 1."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

RANK = int(os.environ.get("RANK", 0))
WORLD = int(os.environ.get("WORLD_SIZE", 1))


def stars(n):
    cls = torch.randint(0, 7, (n,))
    wave = torch.linspace(0.3, 1.0, 50)
    temperature = torch.tensor([35.0, 18, 9, 7, 5.5, 4.5, 3.2])[cls].unsqueeze(1)
    flux = wave**-5 / (torch.exp(14.4 / (wave * temperature)) - 1)
    flux = flux / flux.mean(1, keepdim=True)
    return flux + 0.25 * torch.randn(n, 50) - 1, cls


def main():
    torch.manual_seed(2)
    data = TensorDataset(*stars(6400))
    sampler = DistributedSampler(data, num_replicas=WORLD, rank=RANK, shuffle=True, seed=2)
    loader = DataLoader(data, batch_size=128, sampler=sampler, drop_last=True)
    model = nn.Sequential(
        nn.Linear(50, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 7)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(16):
        total = 0.0
        for flux, cls in loader:
            loss = nn.functional.cross_entropy(model(flux), cls)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if RANK == 0:
            print(f"epoch {epoch}: {total / len(loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
