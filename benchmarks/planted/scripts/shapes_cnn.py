import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

torch.manual_seed(0)


def shapes(n):
    """Discs, rings and squares of random size and place."""
    g = torch.linspace(-1, 1, 28)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1) - 0.5
    size = 0.2 + 0.3 * torch.rand(n, 1, 1)
    label = torch.randint(0, 3, (n,))
    r = torch.hypot(xx - cx, yy - cy)
    square = torch.maximum((xx - cx).abs(), (yy - cy).abs()) < size
    pictures = torch.stack([r < size, (r < size) & (r > size * 0.6), square], 1).float()
    image = pictures[torch.arange(n), label].unsqueeze(1)
    return (image - 0.15) / 0.35 + 0.3 * torch.randn(n, 1, 28, 28), label


class ShapeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        )
        self.fc = nn.Linear(512, 3)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


data = TensorDataset(*shapes(3200))
# the sampler gives whole batches, and TensorDataset is indexed with them at once
loader = DataLoader(
    data, sampler=BatchSampler(RandomSampler(data), 64, drop_last=True), batch_size=None
)
held_x, held_y = shapes(600)
model = ShapeNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=12 * len(loader))
for epoch in range(12):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        acc = (model(held_x).argmax(1) == held_y).float().mean()
    print(f"{epoch=} loss={loss.item():.3f} acc={acc.item():.3f}")
