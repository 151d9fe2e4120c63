"""Which song fits a playlist? Matrix factorisation with a small network on top."""

import random
import time

import torch
from torch import nn

PLAYLISTS, SONGS, DIM = 800, 3000, 24


def make_ratings(rng, count):
    taste = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(PLAYLISTS)]
    style = [[rng.gauss(0, 1) for _ in range(4)] for _ in range(SONGS)]
    ratings = []
    for _ in range(count):
        p, s = rng.randrange(PLAYLISTS), rng.randrange(SONGS)
        fit = sum(a * b for a, b in zip(taste[p], style[s]))
        ratings.append((p, s, 1.0 if fit + rng.gauss(0, 0.5) > 0 else 0.0))
    return ratings


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.playlist = nn.Embedding(PLAYLISTS, DIM)
        self.song = nn.Embedding(SONGS, DIM)
        self.mlp = nn.Sequential(nn.Linear(3 * DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, p, s):
        a, b = self.playlist(p), self.song(s)
        return self.mlp(torch.cat([a, b, a * b], 1)).squeeze(1)


def main():
    rng = random.Random(14)
    torch.manual_seed(14)
    ratings = make_ratings(rng, 80_000)
    held_out, ratings = ratings[:4000], ratings[4000:]
    model = Factors()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    bce = nn.BCEWithLogitsLoss()
    test_p, test_s, test_y = (torch.tensor(column) for column in zip(*held_out))
    columns = [torch.tensor(column) for column in zip(*ratings)]
    for epoch in range(1, 13):
        began = time.perf_counter()
        order = torch.randperm(len(ratings))
        p, s, y = (column[order] for column in columns)
        for i in range(0, len(ratings), 1024):
            loss = bce(model(p[i : i + 1024], s[i : i + 1024]), y[i : i + 1024])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = ((model(test_p, test_s) > 0) == (test_y > 0)).float().mean().item()
        took = time.perf_counter() - began
        print(f"epoch {epoch}: train {loss.item():.3f}, held out {right:.3f}, {took:.2f} s")


if __name__ == "__main__":
    main()
