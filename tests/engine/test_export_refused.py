"""What cannot be exported, or written, is refused with a reason."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.engine.export.exporting import export
from hotlap.errors import MissingFile, UsageError

DATA = TensorDataset(torch.randn(8, 200), torch.zeros(8, dtype=torch.long))
TASK = hotlap.Task(
    model=lambda: nn.Linear(200, 100),
    loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    data=DATA,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    batch_size=4,
    epochs=1,
)


def weights(folder: Path, change: Any = lambda tensor: tensor) -> Path:
    state = nn.Linear(200, 100).state_dict()
    state["weight"] = change(state["weight"])
    path = folder / "given.pt"
    torch.save(state, path)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.to("meta"), r"without dense values \(meta\): weight"),
        (lambda t: t.to_sparse(), r"without dense values \(torch.sparse_coo\): weight"),
        (lambda t: t / 0, "NaN or infinite values in weight"),
        (lambda t: t * float("nan"), "NaN or infinite values in weight"),
        (lambda t: t.to(torch.complex64), "complex values in weight"),
    ],
)
def test_weights_that_are_none_are_refused(change: Any, words: str, tmp_path: Path) -> None:
    path = weights(tmp_path, change)
    with pytest.raises(UsageError, match=words):
        export(TASK, path, tmp_path / "model.pt")
    assert os.listdir(tmp_path) == ["given.pt"]


def test_masks_may_be_infinite(tmp_path: Path) -> None:
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(200, 100)
            self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    torch.save(Masked().state_dict(), tmp_path / "given.pt")
    export(replace(TASK, model=Masked), tmp_path / "given.pt", tmp_path / "model.pt")
    assert (tmp_path / "model.pt").exists()


def test_paths_that_are_none_are_refused(tmp_path: Path) -> None:
    given = weights(tmp_path)
    with pytest.raises(UsageError, match="has 5003 characters, too many"):
        export(TASK, given, "x" * 5000 + ".pt")
    with pytest.raises(UsageError, match="has 5003 characters, too many"):
        export(TASK, "x" * 5000 + ".pt", tmp_path / "model.pt")
    (tmp_path / "dangling.pt").symlink_to("nowhere")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="is a symlink to 'nowhere', which does not exist"):
            export(TASK, given, tmp_path / "dangling.pt", overwrite=overwrite)
    with pytest.raises(MissingFile, match="is a symlink to 'nowhere', which does not exist"):
        export(TASK, tmp_path / "dangling.pt", tmp_path / "model.pt")
    os.mkfifo(tmp_path / "fifo.pt")
    with pytest.raises(MissingFile, match="is not a regular file"):
        export(TASK, tmp_path / "fifo.pt", tmp_path / "model.pt")


FULL = """
import resource, sys
from hotlap.engine.export.exporting import export
from hotlap.errors import StorageError
from tests.engine.test_export_refused import TASK

resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
for to in sys.argv[2:]:
    try:
        export(TASK, sys.argv[1], to)
    except StorageError as error:
        print(error)
"""


@pytest.mark.slow
def test_a_full_disk_is_told_of_and_nothing_is_left(tmp_path: Path, root: Path) -> None:
    given = weights(tmp_path)
    names = [str(tmp_path / f"model{suffix}") for suffix in (".pt", ".safetensors", ".pt2")]
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(given), *names],
        capture_output=True,
        text=True,
        cwd=root,
        timeout=200,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done
    # Torch's own writer would have ended the process.
    assert done.returncode == 0, done
    assert all("could not be written" in line and "Free some space" in line for line in lines)
    assert os.listdir(tmp_path) == ["given.pt"]
