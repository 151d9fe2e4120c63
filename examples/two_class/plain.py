"""The toy of an introductory chapter: five points in the plane, two classes.

python plain.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

INPUTS = torch.tensor([[-1.2, 3.1], [-0.9, 2.9], [-0.5, 2.6], [2.3, -1.1], [2.7, -1.5]])
LABELS = torch.tensor([0, 0, 0, 1, 1])


class Points(Dataset):
    def __init__(self, inputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.labels[index]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 2)
    )


def main() -> None:
    torch.manual_seed(123)
    loader = DataLoader(Points(INPUTS, LABELS), batch_size=2, shuffle=True, drop_last=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for epoch in range(3):
        model.train()
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        print("predicted", model(INPUTS).argmax(dim=1).tolist(), "true", LABELS.tolist())


if __name__ == "__main__":
    main()
