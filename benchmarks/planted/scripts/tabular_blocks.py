import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)

# hourly demand for bicycles from 24 readings
features = torch.randn(4096, 24)
secret = torch.randn(24, 1)
demand = (features @ secret).relu() + 0.3 * features[:, :1] * features[:, 1:2]
demand = demand + 0.1 * torch.randn_like(demand)
dataset = TensorDataset(features, demand)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Regressor(nn.Module):
    def __init__(self, inputs=24, width=192, blocks=2):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def run(epochs=25):
    loader = DataLoader(dataset, batch_size=128, shuffle=True, num_workers=8)
    model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for epoch in range(epochs):
        sum_squares = 0.0
        for x, y in loader:
            residual = model(x) - y
            loss = residual.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sum_squares += loss.item() * len(x)
        print(f"epoch {epoch + 1}: rmse {(sum_squares / len(dataset)) ** 0.5:.4f}")


if __name__ == "__main__":
    run()
