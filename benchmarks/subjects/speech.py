"""Recognize tones from log spectrograms, which are computed for each sample as it is read."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Tones(Dataset):
    def __init__(self, count):
        draw = torch.Generator().manual_seed(0)
        self.labels = torch.randint(10, (count,), generator=draw)
        time = torch.linspace(0, 1, 4000)
        pitch = 200 + 60 * self.labels.float() + torch.randn(count, generator=draw) * 8
        noise = torch.randn(count, 4000, generator=draw)
        self.waves = torch.sin(2 * torch.pi * pitch[:, None] * time) + noise * 0.5
        self.window = torch.hann_window(256)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        wave = self.waves[index] - self.waves[index].mean()
        spectrum = torch.stft(wave, 256, 128, window=self.window, return_complex=True)
        return spectrum.abs().add(1e-6).log().unsqueeze(0), self.labels[index].item()


epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 40
torch.manual_seed(7)
train_set, valid_set = random_split(Tones(4000), [3600, 400])
train = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=0)
valid = DataLoader(valid_set, batch_size=32)
model = nn.Sequential(
    nn.Conv2d(1, 8, 5, stride=2),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d((4, 1)),
    nn.Flatten(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=5e-3, steps_per_epoch=len(train), epochs=epochs
)
best = 0.0
for epoch in range(epochs):
    model.train()
    for spectra, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(spectra), labels).backward()
        optimizer.step()
        scheduler.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
    best = max(best, right / len(valid_set))
    print(f"epoch {epoch}: accuracy {right / len(valid_set):.3f}, best {best:.3f}")
