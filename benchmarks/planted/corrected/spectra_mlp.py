"""Concentration of three substances in a mixture from its absorption spectrum."""
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader

CHANNELS = 400
PEAKS = [(80, 25), (190, 40), (310, 18)]


def spectrum(rng, basis):
    c = [rng.random() for _ in PEAKS]
    values = [sum(ck * b[i] for ck, b in zip(c, basis)) + rng.gauss(0, 0.02) for i in range(CHANNELS)]
    return torch.tensor(values), torch.tensor(c)


def collate(samples):
    spectra = torch.stack([values for values, _ in samples])
    parts = torch.stack([c for _, c in samples])
    return spectra, parts


def main():
    rng = random.Random(77)
    torch.manual_seed(77)
    basis = [
        [math.exp(-(((i - at) / width) ** 2)) for i in range(CHANNELS)] for at, width in PEAKS
    ]
    samples = [spectrum(rng, basis) for _ in range(1280)]
    loader = DataLoader(samples, batch_size=64, shuffle=True, collate_fn=collate)
    net = nn.Sequential(
        nn.Linear(CHANNELS, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 3)
    )
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(80):
        worst = 0.0
        for spectra, parts in loader:
            guess = net(spectra)
            loss = nn.functional.l1_loss(guess, parts)
            adam.zero_grad()
            loss.backward()
            adam.step()
            worst = max(worst, (guess.detach() - parts).abs().max().item())
        if epoch % 10 == 9:
            print(f"after {epoch + 1} epochs: L1 {loss.item():.4f}, worst {worst:.3f}")


if __name__ == "__main__":
    main()
