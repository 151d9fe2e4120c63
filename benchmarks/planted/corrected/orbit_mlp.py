import copy
import math

import torch
from torch import nn


def orbit(n, generator):
    """Start state (position, velocity) and the state a little later, Kepler problem."""
    r = 0.8 + 0.4 * torch.rand(n, generator=generator)
    phi = 2 * math.pi * torch.rand(n, generator=generator)
    speed = r.rsqrt() * (0.9 + 0.2 * torch.rand(n, generator=generator))
    s = torch.stack([r * phi.cos(), r * phi.sin(), -speed * phi.sin(), speed * phi.cos()], 1)
    state = s.clone()
    for _ in range(40):
        q, v = state[:, :2], state[:, 2:]
        v = v - 0.02 * q / q.norm(dim=1, keepdim=True) ** 3
        state = torch.cat([q + 0.02 * v, v], 1)
    return s, state


class Snapshot:
    """If the loss explodes, go back to where all was fine."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.rescued = 0
        self.take()

    def take(self):
        self.kept = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict()))

    def restore(self):
        self.model.load_state_dict(self.kept[0])
        self.optimizer.load_state_dict(copy.deepcopy(self.kept[1]))
        self.rescued += 1


generator = torch.Generator().manual_seed(10)
torch.manual_seed(10)
x, y = orbit(20_000, generator)
model = nn.Sequential(
    nn.Linear(4, 512), nn.Softplus(), nn.Linear(512, 512), nn.Softplus(),
    nn.Linear(512, 512), nn.Softplus(), nn.Linear(512, 4),
)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4, fused=True)
snapshot = Snapshot(model, optimizer)
for step in range(1200):
    i = torch.randint(0, len(x), (64,), generator=generator)
    loss = (model(x[i]) - y[i]).pow(2).mean()
    if not math.isfinite(loss.item()) or loss.item() > 100:
        snapshot.restore()
        continue
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        snapshot.take()
        print(f"{step:5d} loss {loss.item():.6f} rescued {snapshot.rescued}")
