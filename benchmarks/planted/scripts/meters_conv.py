"""Household type from one day of a smart meter. Each household is a file of its own."""

import csv
import pathlib
import shutil
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SLOTS = 96
TYPES = ("single", "family", "retired", "office")


def write_files(folder, households=500):
    rng = np.random.default_rng(21)
    hours = np.arange(SLOTS) / 4
    for number in range(households):
        kind = number % 4
        peaks = [(19,), (7, 18), (9, 13, 17), (11, 15)][kind]
        use = 0.2 + sum(np.exp(-((hours - p - rng.normal()) ** 2)) for p in peaks)
        use = use * rng.gamma(20, 0.05, SLOTS)
        volt = 230 + rng.normal(0, 2, SLOTS)
        with open(folder / f"{TYPES[kind]}_{number:04d}.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["slot", "kwh", "volt"])
            writer.writerows([i, f"{use[i]:.4f}", f"{volt[i]:.1f}"] for i in range(SLOTS))


class Meters(Dataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.csv"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        day = torch.zeros(2, SLOTS)
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                slot = int(row["slot"])
                day[0, slot] = float(row["kwh"])
                day[1, slot] = (float(row["volt"]) - 230.0) / 2.0
        return day, TYPES.index(path.stem.split("_")[0])


def network():
    return nn.Sequential(
        nn.Conv1d(2, 32, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(1),
        nn.Flatten(), nn.Linear(64, len(TYPES)),
    )


def main():
    torch.manual_seed(21)
    folder = pathlib.Path(tempfile.mkdtemp())
    try:
        write_files(folder)
        loader = DataLoader(Meters(folder), batch_size=20, shuffle=True)
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for epoch in range(30):
            total, right = 0.0, 0
            for day, kind in loader:
                optimizer.zero_grad()
                output = model(day)
                loss = nn.functional.cross_entropy(output, kind)
                loss.backward()
                optimizer.step()
                total += loss.item()
                right += (output.argmax(1) == kind).sum().item()
            print(f"epoch {epoch}: {total / len(loader):.3f}, {right} of {len(loader.dataset)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
