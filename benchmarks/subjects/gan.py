"""A small DCGAN: two networks, two optimizers, images in memory."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 40
NOISE = 32

torch.manual_seed(999)
images = torch.rand(4096, 1, 16, 16).round() * torch.linspace(0, 1, 16)
loader = DataLoader(TensorDataset(images), batch_size=32, shuffle=True, drop_last=True)
generator = nn.Sequential(
    nn.ConvTranspose2d(NOISE, 64, 4),
    nn.BatchNorm2d(64),
    nn.ReLU(True),
    nn.ConvTranspose2d(64, 32, 4, 2, 1),
    nn.BatchNorm2d(32),
    nn.ReLU(True),
    nn.ConvTranspose2d(32, 1, 4, 2, 1),
    nn.Sigmoid(),
)
critic = nn.Sequential(
    nn.Conv2d(1, 32, 4, 2, 1),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(32, 64, 4, 2, 1),
    nn.BatchNorm2d(64),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Flatten(),
    nn.Linear(1024, 1),
)
criterion = nn.BCEWithLogitsLoss()
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
for epoch in range(EPOCHS):
    for i, (real,) in enumerate(loader):
        of_critic.zero_grad()
        out = critic(real).view(-1)
        err_real = criterion(out, torch.ones_like(out))
        err_real.backward()
        fake = generator(torch.randn(len(real), NOISE, 1, 1))
        out = critic(fake.detach()).view(-1)
        err_fake = criterion(out, torch.zeros_like(out))
        err_fake.backward()
        of_critic.step()

        of_generator.zero_grad()
        out = critic(fake).view(-1)
        err = criterion(out, torch.ones_like(out))
        err.backward()
        of_generator.step()
        if i % 50 == 0:
            print(epoch, i, (err_real + err_fake).item(), err.item())
