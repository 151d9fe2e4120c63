"""Variational autoencoder for pen strokes (rasterised ahead, 24 x 24)."""

import torch
from torch import nn
from torch.nn import functional as F

SIDE = 24


def strokes(n):
    t = torch.linspace(-1, 1, 60)
    a, b, c = torch.randn(3, n, 1) * 0.5
    x = (t * 0.8).expand(n, -1)
    y = (a + b * t + c * t**2).clamp(-0.9, 0.9)
    column = ((x + 1) / 2 * (SIDE - 1)).long()
    row = ((y + 1) / 2 * (SIDE - 1)).long()
    images = torch.zeros(n, SIDE * SIDE)
    images.scatter_(1, row * SIDE + column, 1.0)
    return images


class VAE(nn.Module):
    def __init__(self, latent=8, hidden=320):
        super().__init__()
        self.enc = nn.Linear(SIDE * SIDE, hidden)
        self.mu, self.logvar = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
        self.dec = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, SIDE * SIDE))

    def forward(self, x):
        h = F.relu(self.enc(x))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo(logits, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    kl = -0.5 * (1 + logvar - mu.square() - logvar.exp()).sum()
    return (rec + kl) / len(x)


def main():
    torch.manual_seed(18)
    data = strokes(12_800)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(1, 16):
        total = torch.zeros(())
        for batch in torch.randperm(len(data)).split(256):
            x = data[batch]
            logits, mu, logvar = model(x)
            loss = elbo(logits, x, mu, logvar)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch:2d}  -elbo {total.item() / (len(data) / 256):.2f}")


if __name__ == "__main__":
    main()
