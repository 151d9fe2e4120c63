"""A training script that moves weights itself: what `benchmarks lies` lies about.

After each update it gives the rows of one layer the length 1, and it averages the model, which has
batch norm. Its data are made up.
"""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset


class Matcher(nn.Module):
    def __init__(self, classes: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 16)
        )
        self.prototypes = nn.Linear(16, classes, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 8 * self.prototypes(nn.functional.normalize(self.body(inputs), dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    labels = torch.randint(0, 12, (512,))
    samples = TensorDataset(torch.randn(12, 20)[labels] + torch.randn(512, 20), labels)
    loader, held_out = DataLoader(samples, 32, shuffle=True), DataLoader(samples, 128)
    model = Matcher()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        model.train()
        for inputs, wanted in loader:
            loss = nn.functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                rows = model.prototypes.weight
                rows.div_(rows.norm(dim=1, keepdim=True))
            average.update_parameters(model)
        average.eval()
        with torch.no_grad():
            right = sum(int((average(x).argmax(1) == y).sum()) for x, y in held_out)
        print(right, flush=True)


if __name__ == "__main__":
    main()
