"""Node classification on a random citation graph; the normalised adjacency is sparse."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message="Sparse CSR tensor support")

NODES, FEATURES, CLASSES, LINKS = 1500, 64, 5, 6000


def citations():
    topic = torch.randint(0, CLASSES, (NODES,))
    a = torch.randint(0, NODES, (3 * LINKS,))
    b = torch.randint(0, NODES, (3 * LINKS,))
    keep = (topic[a] == topic[b]) | (torch.rand(3 * LINKS) < 0.15)
    a, b = a[keep], b[keep]
    loops = torch.arange(NODES)
    pairs = torch.stack([torch.cat([a, b, loops]), torch.cat([b, a, loops])]).unique(dim=1)
    degree = torch.bincount(pairs[0], minlength=NODES).float()
    weight = (degree[pairs[0]] * degree[pairs[1]]).rsqrt()
    adjacency = torch.sparse_coo_tensor(
        pairs, weight, (NODES, NODES), check_invariants=False
    ).coalesce()
    features = 0.3 * nn.functional.one_hot(topic, CLASSES).float() @ torch.randn(CLASSES, FEATURES)
    return adjacency, features + torch.randn(NODES, FEATURES), topic


class GCN(nn.Module):
    def __init__(self, hidden=128):
        super().__init__()
        self.w1 = nn.Linear(FEATURES, hidden)
        self.w2 = nn.Linear(hidden, hidden)
        self.w3 = nn.Linear(hidden, CLASSES)
        self.drop = nn.Dropout(0.3)

    def forward(self, adjacency, x):
        x = torch.relu(torch.sparse.mm(adjacency, self.w1(x)))
        x = torch.relu(torch.sparse.mm(adjacency, self.w2(self.drop(x))))
        return torch.sparse.mm(adjacency, self.w3(self.drop(x)))


def main():
    torch.manual_seed(15)
    adjacency, x, y = citations()
    train = torch.rand(NODES) < 0.3
    model = GCN()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(1, 401):
        model.train()
        out = model(adjacency, x)
        loss = nn.functional.cross_entropy(out[train], y[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 50 == 0:
            model.eval()
            with torch.no_grad():
                right = (model(adjacency, x).argmax(1) == y)[~train].float().mean().item()
            print(f"epoch {epoch}: loss {loss.item():.3f} others {right:.3f}")


if __name__ == "__main__":
    main()
