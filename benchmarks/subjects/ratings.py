"""Factorize ratings; the embeddings' gradients are dense, as by default."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Factors(nn.Module):
    def __init__(self, users, items, width):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.user_bias = nn.Embedding(users, 1)
        self.item_bias = nn.Embedding(items, 1)

    def forward(self, user, item):
        dot = (self.users(user) * self.items(item)).sum(dim=1)
        return dot + self.user_bias(user).squeeze(1) + self.item_bias(item).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(0)
    user, item = torch.randint(12_000, (200_000,)), torch.randint(4_000, (200_000,))
    rating = torch.randn(12_000)[user] * torch.randn(4_000)[item] + torch.randn(200_000) * 0.1
    loader = DataLoader(TensorDataset(user, item, rating), batch_size=512, shuffle=True)
    model = Factors(12_000, 4_000, 32)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(args.epochs):
        total = 0.0
        for users, items, ratings in loader:
            loss = nn.functional.mse_loss(model(users, items), ratings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(users)
        print(f"epoch {epoch} mse {total / len(user):.4f}")


if __name__ == "__main__":
    main()
