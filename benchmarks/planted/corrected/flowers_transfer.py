"""A head for new flower classes on features that were learned elsewhere."""

import torch
import torch.nn as nn
import torch.nn.functional as F


def conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(conv(3, 24), conv(24, 48), conv(48, 64))

    def forward(self, x):
        return self.stages(x).mean((2, 3))


class Flowers(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def pretend_pretrained():
    """Stands for a download: filters that respond to colours and edges."""
    torch.manual_seed(1234)
    backbone = Backbone()
    for p in backbone.parameters():
        if p.dim() == 4:
            nn.init.orthogonal_(p, gain=1.4)
    return backbone


def flowers(n, classes):
    kind = torch.randint(0, classes, (n,))
    grid = torch.linspace(-1, 1, 24)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    angle = torch.atan2(y, x) + torch.rand(n, 1, 1) * 6.28
    petals = torch.cos(angle * (kind % 4 + 3).view(-1, 1, 1)) * 0.3 + 0.6
    mask = (torch.hypot(x, y) < petals).float().unsqueeze(1)
    color = torch.eye(3)[kind % 3].view(n, 3, 1, 1)
    return mask * color + 0.15 * torch.randn(n, 3, 24, 24), kind


def main(classes=8, epochs=8, batch=32):
    backbone = pretend_pretrained()
    torch.manual_seed(0)
    x, y = flowers(2048, classes)
    model = Flowers(backbone, classes)
    # only the new layers learn
    optimizer = torch.optim.Adam(model.head.parameters(), lr=2e-3)
    for epoch in range(epochs):
        loss_sum, hits = 0.0, 0
        for idx in torch.randperm(len(x)).split(batch):
            out = model(x[idx])
            loss = F.cross_entropy(out, y[idx])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(idx)
            hits += (out.argmax(1) == y[idx]).sum().item()
        print(f"Epoch {epoch} loss={loss_sum / len(x):.3f} acc={hits / len(x):.3f}")


if __name__ == "__main__":
    main()
