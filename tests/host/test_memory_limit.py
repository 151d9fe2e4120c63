"""What lives under a memory limit lives under it with hotlap as well: real control groups."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import limited

LIMIT = 700 * 2**20
SAMPLES = 200
"""Of 4 MiB each: more than the limit, if they are held."""
HALF = 30
"""As many are held beside the training."""

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Large(Dataset):
    def __len__(self):
        return int(sys.argv[1])

    def __getitem__(self, index):
        return torch.full((2**20,), float(index)), index % 2

torch.manual_seed(0)
data, model = Large(), nn.Linear(2**20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for epoch in range(2):
    for inputs, labels in DataLoader(data, batch_size=2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
print(float(model.weight.sum()))
"""
RECIPE = """
import torch
from torch import nn
import hotlap

class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return torch.full((2**20,), float(index)), index % 2

def task() -> hotlap.Task:
    return hotlap.Task(
        model=lambda: nn.Linear(2**20, 2),
        loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data=Large(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1e-9),
        batch_size=2,
        epochs=2,
    )
"""


def within(
    group: limited.Group, *command: str, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        group.command([sys.executable, *command]),
        capture_output=True,
        text=True,
        timeout=400,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_what_is_left_is_what_the_group_leaves() -> None:
    ask = "from hotlap.host.memory import memory; import json; print(json.dumps(memory()))"
    with limited.group(64 * 2**20) as group:
        total, available = json.loads(within(group, "-c", ask).stdout)
    assert total == 64 * 2**20
    assert 0 < available < total


@pytest.mark.slow
def test_a_data_set_larger_than_the_limit_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with limited.group(LIMIT) as group:
        plain = within(group, "train.py", str(SAMPLES), cwd=tmp_path)
        ours = within(group, "-m", "hotlap", "run", "train.py", str(SAMPLES), cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert (ours.returncode, ours.stdout) == (0, plain.stdout), ours.stderr
    assert "resident: refused, the dataset takes 800 MiB" in ours.stderr


@pytest.mark.slow
def test_a_script_that_is_killed_for_its_own_memory_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nkeep = torch.ones(2**29)\n")
    with limited.group(LIMIT) as group:
        ours = within(group, "-m", "hotlap", "run", "train.py", cwd=tmp_path)
    assert ours.returncode == 137
    assert "the memory of its control group (700 MiB) was used up" in ours.stderr


@pytest.mark.slow
def test_a_data_set_with_room_is_held(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with limited.group(LIMIT) as group:
        ours = within(group, "-m", "hotlap", "run", "train.py", str(HALF), cwd=tmp_path)
    assert ours.returncode == 0 and "resident:" not in ours.stderr, ours.stderr


@pytest.mark.slow
def test_a_recipe_whose_data_set_is_larger_than_the_limit_is_trained(tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(RECIPE)
    with limited.group(LIMIT) as group:
        ours = within(group, "-m", "hotlap", "train", "recipe.py", cwd=tmp_path)
    assert ours.returncode == 0, ours.stdout + ours.stderr


@pytest.mark.slow
def test_trials_and_estimates_are_held_to_the_groups_memory(tmp_path: Path) -> None:
    ask = (
        "from hotlap.lab.trial import Lab; from hotlap.attach.entry import Script;"
        "from hotlap.engine.memory.estimate import _device_memory\n"
        "with Lab(Script(path='train.py')) as lab:"
        "    print(lab._memory_limit(0), _device_memory('cpu'))"
    )
    with limited.group(LIMIT) as group:
        lab, estimate = map(int, within(group, "-c", ask).stdout.split())
    assert lab <= 0.8 * LIMIT
    assert estimate <= LIMIT
