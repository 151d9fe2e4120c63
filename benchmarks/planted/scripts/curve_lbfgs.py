"""Fit a spectral line profile network with LBFGS, full batch."""

import torch
from torch import nn


def profile(x):
    """A Gaussian line beside a wider Lorentzian one."""
    gauss = torch.exp(-((x - 1) ** 2) * 4)
    lorentz = 0.5 / (1 + (x + 1.5) ** 2 * 6)
    return gauss + lorentz


torch.manual_seed(50)
x = torch.linspace(-4, 4, 1500).unsqueeze(1)
y = profile(x) + 0.01 * torch.randn_like(x)

net = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
lbfgs = torch.optim.LBFGS(
    net.parameters(), max_iter=8, history_size=10, line_search_fn="strong_wolfe"
)


def closure():
    lbfgs.zero_grad()
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    return loss


def main(iterations=320):
    for i in range(iterations):
        loss = lbfgs.step(closure)
        if i % 40 == 0:
            print(f"{i:3d} {loss.item():.3e}")
    with torch.no_grad():
        print("largest error", (net(x) - y).abs().max().item())


if __name__ == "__main__":
    main()
