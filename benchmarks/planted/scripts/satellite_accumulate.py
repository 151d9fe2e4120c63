"""Land use from 8-band satellite tiles; two small batches for each update."""

import torch
from torch import nn

BANDS, SIDE, KINDS = 8, 20, 6
SMALL, TOGETHER = 32, 2


def tiles(n):
    kind = torch.randint(0, KINDS, (n,))
    signature = torch.randn(KINDS, BANDS)
    image = signature[kind][:, :, None, None] * 0.4 + torch.randn(n, BANDS, SIDE, SIDE)
    return image, kind


class Tiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(BANDS, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, KINDS),
        )

    def forward(self, x):
        return self.net(x)


torch.manual_seed(13)
images, kinds = tiles(2000)
model = Tiles()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for epoch in range(12):
    total = 0.0
    for group in torch.randperm(len(images)).split(SMALL * TOGETHER):
        optimizer.zero_grad()
        for part in group.split(SMALL):
            # each part counts by its size, so the last, smaller group is right too
            loss = nn.functional.cross_entropy(model(images[part]), kinds[part])
            (loss * (len(part) / len(group))).backward()
            total += loss.item() * len(part)
        optimizer.step()
    print(f"epoch {epoch + 1}: {total / len(images):.4f}")
