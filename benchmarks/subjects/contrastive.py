"""SimCLR-like training: two augmented views of each image, made in two worker processes."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class TwoViews(Dataset):
    def __init__(self, images):
        self.images = images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.augment(self.images[index]), self.augment(self.images[index])

    def augment(self, image):
        image = F.pad(image, (4, 4, 4, 4), mode="reflect")
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        gain, shift = 0.6 + 0.8 * torch.rand(3, 1, 1), 0.2 * torch.rand(3, 1, 1) - 0.1
        return (image * gain + shift).clamp(0, 1)


def loss_of(first, second, temperature=0.5):
    z = F.normalize(torch.cat([first, second]), dim=1)
    scores = z @ z.T / temperature
    scores.fill_diagonal_(-1e9)
    count = len(first)
    goal = torch.cat([torch.arange(count, 2 * count), torch.arange(count)])
    return F.cross_entropy(scores, goal)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)
    images = torch.rand(2048, 3, 32, 32)
    loader = DataLoader(
        TwoViews(images),
        batch_size=64,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        total = 0.0
        for first, second in loader:
            loss = loss_of(model(first), model(second))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
