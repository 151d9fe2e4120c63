"""Bird calls, four species, from small spectrograms."""

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


def calls(n):
    species = torch.randint(0, 4, (n,))
    time = torch.arange(32)
    rise = torch.tensor([0.5, -0.5, 0.0, 0.25])[species].unsqueeze(1)
    pitch = (12 + 4 * torch.rand(n, 1) + rise * (time - 16)).long().clamp(0, 23)
    image = 0.5 * torch.randn(n, 24, 32)
    image.scatter_add_(1, pitch.unsqueeze(1), torch.full((n, 1, 32), 2.0))
    return image.unsqueeze(1), species


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(32 * 48, 4),
        )

    def forward(self, x):
        return self.net(x)


def main():
    torch.manual_seed(45)
    data = TensorDataset(*calls(2000))
    sampler = BatchSampler(RandomSampler(data), 40, drop_last=False)
    loader = DataLoader(data, sampler=sampler, batch_size=None)
    model = CallNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(12):
        running = 0.0
        for image, species in loader:
            loss = criterion(model(image), species)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"Epoch {epoch + 1:2d} | loss {running / len(loader):.4f}")


if __name__ == "__main__":
    main()
