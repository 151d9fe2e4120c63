"""Segment shapes with a small U-Net; images are drawn, and flipped at random, as they are read."""

import argparse

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, count):
        self.boxes = np.random.default_rng(0).integers(4, 28, (count, 3, 2))

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, index):
        image = Image.new("L", (48, 48))
        draw = ImageDraw.Draw(image)
        for x, y in self.boxes[index]:
            draw.ellipse((int(x), int(y), int(x) + 12, int(y) + 12), fill=255)
        mask = torch.from_numpy(np.array(image)).float().div(255).unsqueeze(0)
        noisy = (mask + torch.randn(1, 48, 48) * 0.5).clamp(0, 1)
        if torch.rand(()) < 0.5:
            noisy, mask = noisy.flip(-1), mask.flip(-1)
        return noisy, mask


def double(inside, outside):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.middle = double(1, 8), double(8, 16), double(16, 32)
        self.up2, self.join2 = nn.ConvTranspose2d(32, 16, 2, 2), double(32, 16)
        self.up1, self.join1 = nn.ConvTranspose2d(16, 8, 2, 2), double(16, 8)
        self.pool, self.out = nn.MaxPool2d(2), nn.Conv2d(8, 1, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up2(self.middle(self.pool(second)))
        x = self.up1(self.join2(torch.cat([x, second], dim=1)))
        return self.out(self.join1(torch.cat([x, first], dim=1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Shapes(2000), batch_size=16, shuffle=True)
    model = UNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for images, masks in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(images), masks)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
