"""Will an ad be clicked? Log lines come as a stream."""

import random
import zlib

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

BUCKETS = 5000
SITES = ["news", "shop", "mail", "game", "wiki"]


class ClickLog(IterableDataset):
    """Pretends to read a log of a day."""

    def __init__(self, lines, day):
        self.lines = lines
        self.day = day

    def __iter__(self):
        rng = random.Random(self.day)
        for _ in range(self.lines):
            site, hour, ad = rng.choice(SITES), rng.randrange(24), rng.randrange(400)
            chance = 0.1 + 0.5 * (ad % 7 == SITES.index(site)) + 0.2 * (hour > 18)
            words = (site, f"h{hour}", f"ad{ad}", f"{site}-ad{ad}")
            code = torch.tensor([zlib.crc32(w.encode()) % BUCKETS for w in words])
            yield code, float(rng.random() < chance)


class Clicks(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(BUCKETS, 32)
        self.mlp = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, codes):
        return self.mlp(self.table(codes).flatten(1)).squeeze(1)


def main():
    torch.manual_seed(66)
    model = Clicks()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for day in range(8):
        loader = DataLoader(ClickLog(5000, day), batch_size=100, num_workers=2)
        total, batches = 0.0, 0
        for codes, clicked in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(codes), clicked.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, batches = total + loss.item(), batches + 1
        print(f"day {day}: {batches} batches, loss {total / batches:.4f}")


if __name__ == "__main__":
    main()
