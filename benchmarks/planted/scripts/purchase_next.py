"""What will this customer buy next? Last eight purchases -> next one."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

PRODUCTS = 1500
HISTORY = 8


class NextPurchase(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.product = nn.Linear(PRODUCTS, dim, bias=False)
        self.hidden = nn.Linear(HISTORY * dim, 128)
        self.out = nn.Linear(128, PRODUCTS)

    def forward(self, history):
        items = F.one_hot(history, PRODUCTS).float()
        x = self.product(items).flatten(1)
        return self.out(F.relu(self.hidden(x)))


def customers(n, rng):
    # everybody walks along a ring of products, some faster
    start = rng.integers(0, PRODUCTS, (n, 1))
    pace = rng.integers(1, 4, (n, 1))
    walk = (start + pace * np.arange(HISTORY + 1)) % PRODUCTS
    stray = rng.random(walk.shape) < 0.1
    walk[stray] = rng.integers(0, PRODUCTS, stray.sum())
    return torch.from_numpy(walk)


def evaluate(model, walks):
    model.eval()
    with torch.no_grad():
        top = model(walks[:, :HISTORY]).topk(10).indices
    model.train()
    return (top == walks[:, HISTORY:]).any(1).float().mean().item()


def main():
    rng = np.random.default_rng(2)
    torch.manual_seed(2)
    train, test = customers(9600, rng), customers(500, rng)
    model = NextPurchase()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        for rows in train[torch.randperm(len(train))].split(96):
            loss = F.cross_entropy(model(rows[:, :HISTORY]), rows[:, HISTORY])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, hit@10 {evaluate(model, test):.3f}")


if __name__ == "__main__":
    main()
