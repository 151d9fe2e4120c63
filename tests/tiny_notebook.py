"""A notebook that trains what `tiny.py` trains, in cells."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CELLS = (
    "%matplotlib inline\nimport torch\nfrom torch import nn\n"
    "from torch.utils.data import DataLoader, Dataset",
    """class Items(Dataset):
    def __init__(self, count):
        self.pixels = torch.arange(count * 64, dtype=torch.float32).reshape(count, 1, 8, 8)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        return self.pixels[index].sin().mul(3).add(1).div(4), index % 10""",
    """torch.manual_seed(0)
loader = DataLoader(Items(256), batch_size=16, shuffle=True, num_workers=WORKERS)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
sum(p.numel() for p in model.parameters())""",
    """%%time
for epoch in range(EPOCHS):
    total = 0.0
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total!r}")""",
)


def notebook(*cells: str) -> dict[str, Any]:
    """Return the content of a notebook with these code cells, and one of text before them."""
    code = [
        {
            "cell_type": "code",
            "source": text.splitlines(keepends=True),
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for text in cells
    ]
    title = {"cell_type": "markdown", "source": ["# Digits\n"], "metadata": {}}
    return {"cells": [title, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def write(path: Path, *, epochs: int = 2, workers: int = 0, more: Sequence[str] = ()) -> Path:
    """Write the notebook and return its path.

    Args:
        path: where.
        epochs: that it trains.
        workers: of its DataLoader.
        more: cells behind the others.
    """
    cells = [
        cell.replace("EPOCHS", str(epochs)).replace("WORKERS", str(workers))
        for cell in (*CELLS, *more)
    ]
    path.write_text(json.dumps(notebook(*cells), indent=1))
    return path
