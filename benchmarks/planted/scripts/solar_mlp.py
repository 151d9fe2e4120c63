import numpy as np
import torch
from torch import nn

"""Output of a solar park from a weather forecast."""

HP = {"lr": 0.05, "epochs": 20, "batch": 150, "width": 256}


def forecast(n, rng):
    clouds = rng.beta(0.7, 0.7, n)
    height = rng.uniform(0, 1, n)
    temperature = rng.normal(0, 1, n)
    rest = rng.normal(0, 1, (n, 21))
    power = height * (1 - 0.75 * clouds**3) * (1 - 0.04 * temperature)
    x = np.column_stack([clouds * 2 - 1, height * 2 - 1, temperature, rest])
    return torch.tensor(x).float(), torch.tensor(power).float()


class Park(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(24, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)
        )

    def forward(self, x):
        return self.net(x)[:, 0]


if __name__ == "__main__":
    torch.manual_seed(6)
    x, y = forecast(7500, np.random.default_rng(6))
    net = Park(HP["width"])
    optimizer = torch.optim.SGD(net.parameters(), lr=HP["lr"], momentum=0.9)
    per_epoch = len(x) // HP["batch"]
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=3 * per_epoch)
    for epoch in range(HP["epochs"]):
        order = torch.randperm(len(x))
        for k in range(per_epoch):
            rows = order[k * HP["batch"] : (k + 1) * HP["batch"]]
            scheduler.step()
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(net(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        print(epoch, "lr", round(scheduler.get_last_lr()[0], 4), "mse", round(loss.item(), 5))
