"""Convolutional autoencoder that removes noise from cloud pictures."""

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.down1 = nn.Conv2d(1, c, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.up1 = nn.ConvTranspose2d(2 * c, c, 4, stride=2, padding=1)
        self.up2 = nn.ConvTranspose2d(2 * c, 1, 4, stride=2, padding=1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(a))
        return self.up2(torch.cat([F.relu(self.up1(b)), a], 1))


def clouds(n):
    coarse = torch.randn(n, 1, 5, 5)
    fine = torch.randn(n, 1, 9, 9)
    size = (32, 32)
    return F.interpolate(coarse, size, mode="bicubic") + 0.4 * F.interpolate(fine, size, mode="bicubic")


if __name__ == "__main__":
    torch.manual_seed(0)
    train, test = clouds(2000), clouds(200)
    noisy_test = test + 0.5 * torch.randn_like(test)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(10):
        model.train()
        for rows in torch.randperm(len(train)).split(50):
            clean = train[rows]
            loss = F.l1_loss(model(clean + 0.5 * torch.randn_like(clean)), clean)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = F.mse_loss(model(noisy_test), test).item()
        print(f"epoch {epoch}: l1 {loss.item():.4f}, test mse {error:.4f}")
