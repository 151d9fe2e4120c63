import torch
from torch import nn

# Tomorrow's temperature from 40 days of weather, with a gated memory.

DAYS = 40


class Memory(nn.Module):
    """Reads a sequence day by day."""

    def __init__(self, inputs, size):
        super().__init__()
        self.size = size
        self.reset = nn.Linear(inputs + size, size)
        self.update = nn.Linear(inputs + size, size)
        self.candidate = nn.Linear(inputs + size, size)

    def forward(self, sequence):
        h = sequence.new_zeros(sequence.shape[0], self.size)
        for day in range(sequence.shape[1]):
            x = sequence[:, day]
            both = torch.cat([x, h], dim=1)
            r = torch.sigmoid(self.reset(both))
            z = torch.sigmoid(self.update(both))
            n = torch.tanh(self.candidate(torch.cat([x, r * h], dim=1)))
            h = (1 - z) * n + z * h
        return h


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory(6, 64)
        self.last = nn.Linear(64, 1)

    def forward(self, x):
        return self.last(self.memory(x)).squeeze(1)


def climate(days):
    t = torch.arange(days, dtype=torch.float32)
    season = torch.sin(t / 365 * 6.283)
    noise = torch.zeros(days)
    kick = torch.randn(days) * 0.3
    for d in range(1, days):
        noise[d] = 0.9 * noise[d - 1] + kick[d]
    others = torch.randn(days, 4) * 0.5 + noise[:, None]
    return torch.cat([(season + noise)[:, None], season.cos()[:, None], others], 1)


def main(steps=500):
    torch.manual_seed(12)
    data = climate(4000)
    windows = data.unfold(0, DAYS + 1, 1).transpose(1, 2)
    model = Forecast()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(1, steps + 1):
        batch = windows[torch.randint(0, len(windows), (48,))]
        loss = nn.functional.mse_loss(model(batch[:, :DAYS]), batch[:, DAYS, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(f"{step:4d}  {loss.item():.4f}")


main()
