"""Scripts that die: their own traceback first, then what it means, and their own exit code."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]

HEAD = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __init__(self, read):
        self.read = read
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return self.read(index)

def train(read=lambda index: (torch.ones(4), index % 3), features=4, outputs=3, **options):
    model = nn.Linear(features, outputs)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in DataLoader(Data(read), 8, **options):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

"""
KINDS = {
    "shape_mismatch": ("train(features=5)", "4 features, and the layer was built for 5."),
    "index_out_of_range": ("train(outputs=2)", "A label is 2:"),
    "worker_died": (
        "train(lambda index: os.kill(os.getpid(), signal.SIGKILL), num_workers=1)",
        "The system has killed it",
    ),
    "dtype_mismatch": (
        "train(lambda index: (torch.ones(4).double(), 0))",
        "One is float64, the other float32.",
    ),
    "host_out_of_memory": ("torch.empty(10**13)", "36.38 TiB were asked for in one piece."),
    "device_mismatch": (
        "nn.Linear(4, 3)(torch.ones(2, 4, device='meta'))",
        "One is on cpu, the other on meta.",
    ),
    "driver_mismatch": ("torch.ones(1).cuda()", ""),
    "too_many_open_files": (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "kept = [open(__file__) for _ in range(40)]",
        "",
    ),
    "rendezvous_failed": (
        "import socket\n"
        "taken = socket.create_server(('127.0.0.1', 0))\n"
        "import torch.distributed as dist\n"
        "dist.TCPStore('127.0.0.1', taken.getsockname()[1], 1, True)",
        "",
    ),
    "collective_timeout": (
        "import datetime, torch.distributed as dist, torch.multiprocessing as mp\n"
        "wait = datetime.timedelta(seconds=3)\n"
        "def rank(number, file):\n"
        "    dist.init_process_group('gloo', f'file://{file}', rank=number, world_size=2,\n"
        "                            timeout=wait)\n"
        "    if number == 1:\n"
        "        time.sleep(10)\n"
        "        os._exit(0)\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "if __name__ == '__main__':\n"
        "    pid = os.fork()\n"
        "    rank(0 if pid else 1, os.path.abspath('met'))",
        "The time-out is 3 s.",
    ),
}
"""Failure -> how a script dies of it, and what is said of it."""
QUICK = ("shape_mismatch", "worker_died")


@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in KINDS],
)
def test_a_script_that_dies_is_explained_below_its_own_traceback(
    name: str, hotlap: Call, tmp_path: Path
) -> None:
    body, said = KINDS[name]
    (tmp_path / "train.py").write_text(f"{HEAD}\n{body}\n")
    ended = hotlap("run", "train.py")
    assert ended.returncode == 1
    assert ended.stdout == ""
    before, found, after = ended.stderr.partition(f"hotlap: {name}: ")
    assert found, ended.stderr
    assert "Traceback (most recent call last)" in before
    assert "Traceback" not in after and "hotlap: " not in after.replace("hotlap: the", "")
    assert said in after
    assert f"`hotlap explain {name}`" in after


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("train(lambda index: {}['label'])", 1),
        ("try:\n    train(features=5)\nexcept RuntimeError:\n    pass", 0),
        ("try:\n    train(features=5)\nexcept RuntimeError:\n    sys.exit(3)", 3),
    ],
    ids=["not known", "caught", "own exit code"],
)
@pytest.mark.slow
def test_nothing_is_said_of_what_is_not_known_or_was_caught(
    body: str, code: int, hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}\n{body}\n")
    ended = hotlap("run", "train.py")
    assert ended.returncode == code
    assert "hotlap explain" not in ended.stderr


def test_a_script_that_dies_while_it_is_tuned_is_explained(hotlap: Call, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}\ntrain(features=5)\n")
    ended = hotlap("tune", "--budget", "20s", "train.py")
    assert ended.returncode == 1
    assert "Traceback (most recent call last)" in ended.stderr
    assert ended.stderr.count("shape_mismatch: ") == 1


def test_a_recipe_that_dies_is_explained_below_its_own_traceback(
    hotlap: Call, tmp_path: Path
) -> None:
    (tmp_path / "recipe.py").write_text(
        "import torch, hotlap\n"
        "from torch import nn\n"
        "def loss(model, batch):\n"
        "    return nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
        "def task():\n"
        "    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.zeros(64).long())\n"
        "    return hotlap.Task(model=lambda: nn.Linear(5, 3), loss=loss, data=data,\n"
        "        optimizer=lambda model: torch.optim.SGD(model.parameters()),\n"
        "        batch_size=8, epochs=1)\n"
    )
    ended = hotlap("train", "recipe.py")
    assert ended.returncode == 1
    assert "shape_mismatch: " in ended.stderr.partition("Traceback")[2]
