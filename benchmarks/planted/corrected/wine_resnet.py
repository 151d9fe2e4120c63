import argparse

import torch
from torch import nn

"""Wine quality (0..5) from twelve lab values; residual blocks with gates."""


class GatedBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.value = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        h = self.norm(x)
        return x + torch.tanh(self.value(h)) * torch.sigmoid(self.gate(h))


class WineNet(nn.Module):
    def __init__(self, depth, dim):
        super().__init__()
        self.stem = nn.Linear(12, dim)
        self.blocks = nn.ModuleList([GatedBlock(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 6)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.head(x)


def get_data(n=6000):
    g = torch.Generator().manual_seed(99)
    x = torch.randn(n, 12, generator=g)
    q = x[:, 0] + x[:, 1] * x[:, 2] - 0.5 * x[:, 5] ** 2
    edges = torch.quantile(q, torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9]))
    return x, torch.bucketize(q, edges)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--depth", type=int, default=8)
    ap.add_argument("--dim", type=int, default=128)
    ap.add_argument("--epochs", type=int, default=20)
    ap.add_argument("--lr", type=float, default=0.02)
    a = ap.parse_args()

    torch.manual_seed(99)
    x, y = get_data()
    net = WineNet(a.depth, a.dim)
    opt = torch.optim.SGD(net.parameters(), lr=a.lr, momentum=0.9, nesterov=True)
    for ep in range(a.epochs):
        perm = torch.randperm(x.size(0))
        tot = cor = 0
        for i in range(0, x.size(0), 100):
            idx = perm[i : i + 100]
            out = net(x[idx])
            loss = nn.functional.cross_entropy(out, y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item() * idx.numel()
            cor += (out.argmax(-1) == y[idx]).sum().item()
        print("epoch %d | loss %.3f | acc %.3f" % (ep, tot / x.size(0), cor / x.size(0)))
