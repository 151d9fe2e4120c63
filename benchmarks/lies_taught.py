"""A training script with tensors that no optimizer updates: what `benchmarks lies` lies about.

A student learns from labels and from a teacher that stays as it is. Its first layer is frozen, one
of its buffers never changes, and weights are saved after each epoch. Its data are made up.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Student(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(16, 24).requires_grad_(False)
        self.hidden = nn.Linear(24, 48)
        self.norm = nn.BatchNorm1d(48)
        self.out = nn.Linear(48, 4)
        self.register_buffer("scale", torch.ones(24))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = torch.tanh(self.frozen(inputs)) * self.scale
        return self.out(torch.relu(self.norm(self.hidden(found))))


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args().epochs
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (512,))
    samples = TensorDataset(torch.randn(4, 16)[labels] + torch.randn(512, 16), labels)
    loader, held_out = DataLoader(samples, 32, shuffle=True), DataLoader(samples, 128)
    teacher, student = Teacher().eval().requires_grad_(False), Student()
    trained = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3)
    file = Path(tempfile.mkdtemp()) / "student.pt"
    for _ in range(epochs):
        student.train()
        for inputs, wanted in loader:
            found = student(inputs)
            with torch.no_grad():
                taught = teacher(inputs).softmax(1)
            loss = nn.functional.cross_entropy(found, wanted)
            loss = loss + nn.functional.kl_div(found.log_softmax(1), taught, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        student.eval()
        with torch.no_grad():
            right = sum(int((student(x).argmax(1) == y).sum()) for x, y in held_out)
        print(right, flush=True)
        torch.save({"student": student.state_dict(), "right": right}, file)


if __name__ == "__main__":
    main()
