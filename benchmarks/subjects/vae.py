"""A variational autoencoder on small drawings, converted one by one as torchvision does."""

import argparse

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


def to_tensor(image):
    return torch.from_numpy(np.array(image, dtype=np.uint8)).float().div(255).unsqueeze(0)


class Drawings(Dataset):
    def __init__(self, pixels):
        self.pixels = pixels

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return to_tensor(Image.fromarray(self.pixels[index]))


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 400)
        self.mean = nn.Linear(400, 20)
        self.log_variance = nn.Linear(400, 20)
        self.fc3 = nn.Linear(20, 400)
        self.fc4 = nn.Linear(400, 784)

    def forward(self, x):
        hidden = F.relu(self.fc1(x.view(-1, 784)))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mean, log_variance


def loss_function(made, x, mean, log_variance):
    error = F.binary_cross_entropy(made, x.view(-1, 784), reduction="sum")
    return error - 0.5 * torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--log-interval", type=int, default=50)
    args = parser.parse_args()
    torch.manual_seed(1)
    rows, columns = np.mgrid[:28, :28]
    centers = np.random.default_rng(0).uniform(8, 20, (16_000, 2))
    pixels = np.stack(
        [(np.hypot(rows - y, columns - x) < 6).astype(np.uint8) * 255 for y, x in centers]
    )
    loader = DataLoader(Drawings(pixels), batch_size=128, shuffle=True)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss = 0
        for batch, images in enumerate(loader):
            optimizer.zero_grad()
            loss = loss_function(*_ordered(model(images), images))
            loss.backward()
            train_loss += loss.item()
            optimizer.step()
            if batch % args.log_interval == 0:
                print(f"epoch {epoch} [{batch}/{len(loader)}] loss {loss.item() / len(images):.3f}")
        print(f"====> epoch {epoch} average loss {train_loss / len(loader.dataset):.4f}")


def _ordered(outputs, images):
    made, mean, log_variance = outputs
    return made, images, mean, log_variance


if __name__ == "__main__":
    main()
