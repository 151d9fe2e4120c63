"""A graph convolutional network, all nodes in every step, no DataLoader."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class GCN(nn.Module):
    def __init__(self, features, hidden, classes):
        super().__init__()
        self.first, self.second = nn.Linear(features, hidden), nn.Linear(hidden, classes)

    def forward(self, x, adjacency):
        x = F.dropout(x, 0.5, self.training)
        x = F.relu(torch.sparse.mm(adjacency, self.first(x)))
        x = F.dropout(x, 0.5, self.training)
        return torch.sparse.mm(adjacency, self.second(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4000)
    args = parser.parse_args()
    torch.manual_seed(42)
    nodes, classes = 2700, 7
    labels = torch.randint(classes, (nodes,))
    features = (torch.rand(nodes, 700) < 0.02).float() + F.one_hot(labels, 700) * 0.5
    edges = torch.randint(nodes, (2, 10_000))
    edges = torch.cat([edges, edges.flip(0), torch.arange(nodes).repeat(2, 1)], dim=1)
    adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (nodes, nodes))
    adjacency = (adjacency.coalesce() / 8).coalesce()
    train = torch.arange(nodes) < 1400
    model = GCN(700, 16, classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(args.epochs):
        model.train()
        optimizer.zero_grad()
        output = model(features, adjacency)
        loss = F.cross_entropy(output[train], labels[train])
        loss.backward()
        optimizer.step()
        if epoch % 20 == 0:
            model.eval()
            with torch.no_grad():
                right = model(features, adjacency).argmax(1)[~train] == labels[~train]
            print(f"epoch {epoch}: loss {loss.item():.4f}, test {right.float().mean():.3f}")


if __name__ == "__main__":
    main()
