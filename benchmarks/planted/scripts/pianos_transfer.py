"""Reuse a network trained on many instruments for three kinds of piano."""

import torch
from torch import nn

PARTIALS = 80


def build(classes):
    return nn.Sequential(
        nn.Linear(PARTIALS, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, classes)
    )


def sounds(n, classes, generator):
    label = torch.randint(0, classes, (n,), generator=generator)
    decay = 0.03 + 0.02 * label.unsqueeze(1)
    level = torch.exp(-decay * torch.arange(PARTIALS))
    return (level - 0.2) * 2 + 0.4 * torch.randn(n, PARTIALS, generator=generator), label


def epoch(model, optimizer, x, y, generator, batch=100):
    total = 0.0
    for rows in torch.randperm(len(x), generator=generator).split(batch):
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    return total / len(x)


def main():
    torch.manual_seed(77)
    generator = torch.Generator().manual_seed(77)
    model = build(classes=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    model[4] = nn.Linear(256, 3)
    x, y = sounds(6000, 3, generator)
    for number in range(15):
        loss = epoch(model, optimizer, x, y, generator)
        print(f"epoch {number} loss {loss:.4f}")


if __name__ == "__main__":
    main()
