"""Scripts and recipes whose activations dominate, and what `diagnose --memory` says of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

WIDTH, BATCH, LAYERS, SAMPLES = 64, 512, 24, 4096
HEAD = f"""
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{{imports}}
data = TensorDataset(torch.randn({SAMPLES}, {WIDTH}), torch.randn({SAMPLES}, 1))


def network():
    layers = []
    for _ in range({LAYERS}):
        layers += [nn.Linear({WIDTH}, {WIDTH}), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear({WIDTH}, 1))
"""
LOOP = f"""
torch.manual_seed(0)
model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(100):
    for inputs, targets in DataLoader(data, batch_size={BATCH}):
        with torch.autocast("cpu", enabled={{enabled}}):
            loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
TASK = f"""
losses = []


def loss(model, batch):
    with {{region}}:
        outputs = model(batch[0])
        value = nn.functional.mse_loss(outputs, batch[1])
    losses.append({{kept}})
    return value


def task(*, batch_size: int = {BATCH}, accumulate: int = 1):
    return hotlap.Task(
        model=network,
        loss=loss,
        data=data,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-3),
        batch_size=batch_size,
        accumulate=accumulate,
        epochs=100,
    )
"""


def script(*, autocast: bool) -> str:
    """Return a script, with autocast or without."""
    return HEAD.format(imports="") + LOOP.format(enabled=autocast)


def recipe(*, autocast: bool = False, kept: str = "float(value)") -> str:
    """Return a recipe, with autocast in its loss or without, that keeps something of each step."""
    # What a recipe computes under a region that is off stays as it is, whatever the plan.
    region = 'torch.autocast("cpu")' if autocast else "contextlib.nullcontext()"
    return HEAD.format(imports="import hotlap\n") + TASK.format(region=region, kept=kept)


def diagnosed(folder: Path, text: str, *options: str, budget: str = "60s") -> dict[str, Any]:
    """Return what `hotlap diagnose --memory --json` prints of a script or a recipe."""
    (folder / "train.py").write_text(text)
    command = ["diagnose", "--memory", "--json", "--budget", budget, "train.py", *options]
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", *command],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
