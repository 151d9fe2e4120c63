import torch
from torch import nn

# Tomorrow's temperature from 40 days of weather, with a gated memory.

DAYS = 40


class Forecast(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = nn.GRU(6, 64, batch_first=True)
        self.last = nn.Linear(64, 1)

    def forward(self, x):
        _, h = self.memory(x)
        return self.last(h[-1]).squeeze(1)


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
