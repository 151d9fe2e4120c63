"""Heat equation u_t = 0.1 u_xx on [0, 1] x [0, 1]: the network's own derivatives are the loss."""

import argparse
import math

import torch
from torch import nn


def derivative(u, x):
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]


def residual(net, points):
    points = points.requires_grad_()
    u = net(points)
    first = derivative(u, points)
    second = derivative(first[:, 0], points)[:, 0]
    return first[:, 1] - 0.1 * second


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--points", type=int, default=512)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(2, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh(), nn.Linear(96, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.997)
    x = torch.linspace(0, 1, 128)
    start = torch.stack([x, torch.zeros_like(x)], 1)
    u_start = torch.sin(math.pi * x)
    for step in range(args.steps):
        inside = torch.rand(args.points, 2)
        walls = torch.rand(64, 2)
        walls[:, 0] = walls[:, 0].round()
        optimizer.zero_grad()
        loss = residual(net, inside).square().mean()
        loss = loss + (net(start).squeeze(1) - u_start).square().mean() + net(walls).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"{step}: {loss.item():.5f}")
    with torch.no_grad():
        u = net(torch.stack([x, torch.full_like(x, 0.5)], 1)).squeeze(1)
        exact = torch.exp(torch.tensor(-0.1 * math.pi**2 * 0.5)) * u_start
        print("error at t = 0.5:", (u - exact).abs().max().item())


if __name__ == "__main__":
    main()
