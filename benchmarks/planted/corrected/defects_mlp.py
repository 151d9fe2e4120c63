import numpy as np
import torch
from torch import nn

# Surface defects of sheet steel. Rare kinds are drawn more often.

N, D, KINDS = 120_000, 27, 7
BATCH = 100
STEPS = 1500


def sheets(rng):
    kind = rng.choice(KINDS, N, p=[0.6, 0.2, 0.1, 0.05, 0.03, 0.015, 0.005])
    means = rng.normal(0, 1.0, (KINDS, D))
    return (means[kind] + rng.standard_normal((N, D))).astype(np.float32), kind


class Balanced:
    """Draws rows so that all kinds are about equally frequent."""

    def __init__(self, kind, rng):
        self.kind, self.rng = kind, rng
        frequency = np.bincount(kind, minlength=KINDS)
        weights = (1.0 / frequency)[kind]
        self.cumulated = np.cumsum(weights / weights.sum())
        self.cumulated[-1] = 1.0

    def draw(self, size):
        rows = np.searchsorted(self.cumulated, self.rng.random(size), side="right")
        return torch.from_numpy(rows)


def main():
    rng = np.random.default_rng(16)
    torch.manual_seed(16)
    x, kind = sheets(rng)
    sampler = Balanced(kind, rng)
    x, y = torch.from_numpy(x), torch.from_numpy(kind)
    model = nn.Sequential(
        nn.Linear(D, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, KINDS)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = np.zeros(KINDS, int)
    for step in range(1, STEPS + 1):
        rows = sampler.draw(BATCH)
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += np.bincount(kind[rows.numpy()], minlength=KINDS)
        if step % 250 == 0:
            print(f"step {step}: loss {loss.item():.4f}, seen {seen.tolist()}")


if __name__ == "__main__":
    main()
