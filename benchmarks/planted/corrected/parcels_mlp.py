"""Delivery time of parcels, in hours, from origin, target and weekday."""

import torch
from torch import nn

HUBS = 30


class DeliveryTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.origin = nn.Embedding(HUBS, 32)
        self.target = nn.Embedding(HUBS, 32)
        self.weekday = nn.Embedding(7, 8)
        self.net = nn.Sequential(
            nn.Linear(72, 320), nn.ReLU(), nn.Linear(320, 320), nn.ReLU(), nn.Linear(320, 1)
        )

    def forward(self, parcel):
        parts = [self.origin(parcel[:, 0]), self.target(parcel[:, 1]), self.weekday(parcel[:, 2])]
        return self.net(torch.cat(parts, 1)).squeeze(1)


def parcels(n, place):
    p = torch.stack([torch.randint(0, k, (n,)) for k in (HUBS, HUBS, 7)], 1)
    way = (place[p[:, 0]] - place[p[:, 1]]).norm(dim=1)
    hours = 10 * way + 24 * (p[:, 2] >= 5) + 4 * torch.rand(n)
    return p, (hours - 20) / 12


@torch.no_grad()
def mean_error(model, p, hours):
    model.eval()
    total = 0.0
    for part, true in zip(p.split(500), hours.split(500)):
        total += (model(part) - true).abs().sum().item()
    model.train()
    return 12 * total / len(p)


def main():
    torch.manual_seed(17)
    place = torch.rand(HUBS, 2)
    p, hours = parcels(9000, place)
    test = parcels(3000, place)
    model = DeliveryTime()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    for epoch in range(1, 19):
        for rows in torch.randperm(len(p)).split(150):
            loss = nn.functional.l1_loss(model(p[rows]), hours[rows])
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"after epoch {epoch}: {mean_error(model, *test):.2f} hours off")


if __name__ == "__main__":
    main()
