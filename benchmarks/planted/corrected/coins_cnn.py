"""Value of a coin from its picture; sizes and brightness differ."""

import torch
from torch import nn, optim

EPOCHS = 12


def coins(n):
    value = torch.randint(0, 8, (n,))
    g = torch.linspace(-1, 1, 20)
    y, x = torch.meshgrid(g, g, indexing="ij")
    radius = (0.4 + 0.06 * value).view(-1, 1, 1)
    face = (torch.hypot(x, y) < radius).float() * (1.5 - 0.5 * (value < 3).float()).view(-1, 1, 1)
    return (face - 0.6).unsqueeze(1) + 0.2 * torch.randn(n, 1, 20, 20), value


def build():
    return nn.Sequential(
        nn.Conv2d(1, 20, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 40, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(40 * 25, 8),
    )


def run():
    torch.manual_seed(88)
    x, y = coins(2000)
    tx, ty = coins(500)
    model = build()
    opt = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=EPOCHS)
    for epoch in range(EPOCHS):
        model.train()
        for rows in torch.randperm(len(x)).split(50):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            opt.step()
        scheduler.step()
        model.eval()
        with torch.no_grad():
            acc = (model(tx).argmax(1) == ty).float().mean().item()
        print(f"epoch {epoch} acc {acc:.3f} lr {scheduler.get_last_lr()[0]:.4f}")


run()
