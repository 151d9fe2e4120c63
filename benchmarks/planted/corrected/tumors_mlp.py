import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description="Benign or malignant, from 30 measured values")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=80)
parser.add_argument("--dropout", type=float, default=0.4)
args = parser.parse_args()

torch.manual_seed(90)


def measured(n):
    """Values of n patients; the malignant ones are shifted a little."""
    malignant = (torch.rand(n) < 0.4).long()
    x = torch.randn(n, 30) + 0.35 * malignant.unsqueeze(1) * torch.linspace(-1, 1, 30)
    return x, malignant


train_x, train_y = measured(4000)
valid_x, valid_y = measured(1000)
model = nn.Sequential(
    nn.Linear(30, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(args.dropout),
    nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(args.dropout),
    nn.Linear(256, 2),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for epoch in range(args.epochs):
    model.train()
    for rows in torch.randperm(len(train_x)).split(args.batch):
        loss = nn.functional.cross_entropy(model(train_x[rows]), train_y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = torch.cat([model(part) for part in valid_x.split(250)])
        acc = (out.argmax(1) == valid_y).float().mean().item()
    print(f"epoch {epoch:2d} loss {loss.item():.3f} validation accuracy {acc:.3f}")
