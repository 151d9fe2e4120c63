# learn what a healthy pump looks like: predict each of 20 sensors from the others
import torch
from torch import nn

torch.manual_seed(31)


def res(width):
    return nn.Sequential(nn.Linear(width, width // 2), nn.Tanh(), nn.Linear(width // 2, width))


class Residual(nn.Module):
    def __init__(self, n, width):
        super().__init__()
        self.parts = nn.ModuleList([res(width) for _ in range(n)])

    def forward(self, x):
        for part in self.parts:
            x = x + 0.2 * part(x)
        return x


net = nn.Sequential(nn.Linear(20, 40), Residual(36, 40), nn.Linear(40, 20))
opt = torch.optim.AdamW(net.parameters(), lr=5e-4, foreach=False)

# latent state of the pump: 4 numbers
latent = torch.randn(10_000, 4)
mixing = torch.randn(4, 20)
sensors = torch.tanh(latent @ mixing) + 0.05 * torch.randn(10_000, 20)

EPOCHS = 10
for ep in range(EPOCHS):
    perm = torch.randperm(10_000)
    acc = 0.0
    for k in range(0, 10_000, 100):
        batch = sensors[perm[k : k + 100]]
        hide = torch.rand_like(batch) < 0.2
        guess = net(batch.masked_fill(hide, 0.0))
        loss = ((guess - batch)[hide] ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        acc += loss.item()
    print("epoch", ep + 1, "of", EPOCHS, "loss", round(acc / 100, 4))
