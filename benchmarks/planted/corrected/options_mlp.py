"""Price of an option under stochastic volatility, learned from simulated prices."""

import argparse

import torch
from torch import nn


def simulate(n):
    moneyness = 0.7 + 0.6 * torch.rand(n)
    maturity = 0.05 + torch.rand(n)
    volatility = 0.1 + 0.4 * torch.rand(n)
    paths = torch.randn(n, 64)
    end = moneyness.unsqueeze(1) * torch.exp(
        (volatility * maturity.sqrt()).unsqueeze(1) * paths - (volatility**2 * maturity / 2).unsqueeze(1)
    )
    price = (end - 1).clamp(min=0).mean(1)
    x = torch.stack([(moneyness - 1) * 5, (maturity - 0.55) * 3, (volatility - 0.3) * 8], 1)
    return x, price


class Pricer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return nn.functional.softplus(self.net(x).squeeze(1)) + 1e-4


def loss_of(guess, price):
    """Relative error, so that cheap options count as well."""
    return (torch.log(guess) - torch.log(price + 1e-4)).square().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(21)
    x, price = simulate(12_000)
    model = Pricer()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
    for step in range(1, args.steps + 1):
        rows = torch.randint(0, len(x), (args.batch,))
        loss = loss_of(model(x[rows]), price[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 150 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
