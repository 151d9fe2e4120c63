"""Route support tickets to teams. Tickets are known by id; features are already extracted."""
import hashlib

import numpy as np
import torch
import torch.nn as nn

TEAMS = 6


class Tickets:
    def __init__(self, n=50_000, dim=32):
        rng = np.random.default_rng(0)
        self.ids = [f"TCK-{2019 + i % 7}-{i:07d}" for i in range(n)]
        self.features = rng.standard_normal((n, dim), dtype=np.float32)
        weights = rng.standard_normal((dim, TEAMS))
        self.team = (self.features @ weights + rng.gumbel(size=(n, TEAMS))).argmax(1)

    def part(self, name):
        """'train' or 'valid': decided by the ticket's id, so it never changes sides."""
        rows = []
        for row, ticket in enumerate(self.ids):
            digest = int(hashlib.sha256(ticket.encode()).hexdigest(), 16)
            if (digest % 10 == 0) == (name == "valid"):
                rows.append(row)
        return torch.tensor(rows)


class Router(nn.Module):
    def __init__(self, dim, hidden=160):
        super().__init__()
        self.l1, self.l2, self.l3 = nn.Linear(dim, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, TEAMS)

    def forward(self, x):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))


def main():
    torch.manual_seed(0)
    tickets = Tickets()
    x, y = torch.from_numpy(tickets.features), torch.from_numpy(tickets.team)
    net = Router(x.shape[1])
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    loss_fn = nn.CrossEntropyLoss()
    train, valid = tickets.part("train"), tickets.part("valid")
    for epoch in range(30):
        net.train()
        # a fresh tenth of the tickets in each epoch
        rows = train[torch.randperm(len(train))[:12_800]]
        for batch in rows.split(256):
            loss = loss_fn(net(x[batch]), y[batch])
            opt.zero_grad()
            loss.backward()
            opt.step()
        net.eval()
        with torch.no_grad():
            hits = (net(x[valid]).argmax(1) == y[valid]).float().mean()
        print(f"epoch {epoch + 1}: {hits:.3f}")


if __name__ == "__main__":
    main()
