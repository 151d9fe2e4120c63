#!/usr/bin/env python3
"""Traffic signs, 16 x 16 pixels, shifted and noisy."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 16


def draw_sign(kind):
    picture = [[0.0] * SIDE for _ in range(SIDE)]
    for r in range(SIDE):
        for c in range(SIDE):
            y, x = r - 7.5, c - 7.5
            inside = (
                x * x + y * y < 36, abs(x) + abs(y) < 7, abs(x) < 6 and abs(y) < 6,
                abs(x) < (y + 7) / 2, abs(x) < 2, abs(y) < 2,
            )[kind]
            picture[r][c] = 1.0 if inside else 0.0
    return picture


class Signs(Dataset):
    def __init__(self, n):
        self.templates = [torch.tensor(draw_sign(kind)) for kind in range(6)]
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        kind = i % 6
        template = self.templates[kind]
        dx, dy = random.randint(-3, 3), random.randint(-3, 3)
        light = random.uniform(0.6, 1.2)
        wide = nn.functional.pad(template, (3, 3, 3, 3))
        picture = wide[3 - dy : 3 - dy + SIDE, 3 - dx : 3 - dx + SIDE] * light
        return picture[None], kind


model = nn.Sequential(
    nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(),
    nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(24 * 64, 6),
)

if __name__ == "__main__":
    random.seed(5)
    torch.manual_seed(5)
    train = DataLoader(Signs(2400), batch_size=48, shuffle=True)
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(18):
        model.train()
        losses = []
        for picture, kind in train:
            picture = picture + 0.4 * torch.randn_like(picture)
            loss = nn.functional.cross_entropy(model(picture), kind)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"{epoch + 1}\t{sum(losses) / len(losses):.4f}")
