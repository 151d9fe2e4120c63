"""Sleep stage from a few seconds of EEG, 16 electrodes."""

import numpy as np
import torch
from torch import nn

ELECTRODES, SAMPLES, STAGES = 16, 160, 5


class Electrodes(nn.Module):
    """Every electrode has filters of its own."""

    def __init__(self, filters=4, width=15):
        super().__init__()
        self.filters = nn.Conv1d(
            ELECTRODES, ELECTRODES * filters, width, padding=width // 2, groups=ELECTRODES
        )

    def forward(self, x):
        return self.filters(x)


class SleepNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.electrodes = Electrodes()
        self.pool = nn.AvgPool1d(8)
        self.mix = nn.Conv1d(64, 64, 3, padding=1)
        self.head = nn.Linear(64, STAGES)

    def forward(self, x):
        power = self.electrodes(x).square()
        x = torch.log(self.pool(power) + 1e-3)
        x = torch.relu(self.mix(x))
        return self.head(x.mean(-1))


def nights(n, rng):
    stage = rng.integers(0, STAGES, n)
    frequency = np.array([25, 10, 6, 3, 1.5])[stage] * rng.uniform(0.9, 1.1, n)
    t = np.arange(SAMPLES) / 100
    phase = rng.uniform(0, 6.28, (n, ELECTRODES, 1))
    wave = np.sin(2 * np.pi * frequency[:, None, None] * t + phase)
    wave += rng.normal(0, 1.0, (n, ELECTRODES, SAMPLES))
    return torch.from_numpy(wave.astype(np.float32)), torch.from_numpy(stage)


def main():
    torch.manual_seed(4)
    rng = np.random.default_rng(4)
    x, stage = nights(1500, rng)
    model = SleepNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
    for epoch in range(12):
        order = torch.randperm(len(x))
        confusion = torch.zeros(STAGES, STAGES, dtype=torch.long)
        for idx in order.split(25):
            logits = model(x[idx])
            loss = nn.functional.cross_entropy(logits, stage[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            confusion.index_put_(
                (stage[idx], logits.argmax(1)), torch.ones(len(idx), dtype=torch.long), accumulate=True
            )
        scheduler.step()
        print(epoch, f"{confusion.diag().sum().item() / len(x):.3f}", flush=True)


if __name__ == "__main__":
    main()
