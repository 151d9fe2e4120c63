"""`train --micro-batch auto` with real trials under a real limit of memory."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.cli import main
from hotlap.errors import RunError, UsageError
from hotlap.lab.trial import Lab
from hotlap.tuning.micro_batches.result import MicroBatch

BATCH = 256
RECIPE = f"""
from typing import Literal

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap

def network(norm):
    wide = nn.Linear(16, 65536)
    return nn.Sequential(wide, nn.Tanh(), nn.Linear(65536, 2), *([nn.BatchNorm1d(2)] * norm))

def mean(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

def contrastive(model, batch):
    scores = model(batch[0])
    return nn.functional.cross_entropy(scores @ scores.T, torch.arange(len(scores)))

def task(*, norm: bool = False, loss: Literal["mean", "contrastive"] = "mean"):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn({2 * BATCH}, 16, generator=generator)
    return hotlap.Task(
        model=lambda: network(norm),
        loss=mean if loss == "mean" else contrastive,
        data=TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        batch_size={BATCH},
        steps=2,
    )
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory that is enforced"),
]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "recipe.py"
    path.write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return path


def find(recipe: Path, memory: int | None = None, **options: Any) -> MicroBatch:
    return hotlap.find_micro_batch(recipe, memory=memory, seconds=1.0, device="cpu", **options)


def memory_of(found: MicroBatch, share: float) -> int:
    """Return the bytes into which that share of the batch fits."""
    whole = found.trials[-1]
    return int(whole.base_bytes + share * (whole.peak_bytes - whole.base_bytes))


def test_the_largest_that_fits_is_found_used_and_kept(
    recipe: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = find(recipe)
    assert free.largest == BATCH
    assert len(free.trials) == 1
    memory = memory_of(free, 0.4)
    argv = ["train", "recipe.py", "--micro-batch", "auto", "--memory", str(memory)]
    assert main([*argv, "--json"]) == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out)
    found = report["micro_batch"]
    tried = {each["size"]: each for each in found["trials"]}
    assert 1 < found["largest"] < BATCH
    assert tried[found["largest"]]["fits"]
    assert tried[found["largest"]]["peak_bytes"] <= memory
    # One more sample was tried, and did not fit.
    assert not tried[found["largest"] + 1]["fits"]
    assert found["fastest"] <= found["largest"]
    assert report["plan"]["micro_batch"] == {"size": found["fastest"]}
    assert f"largest micro-batch that fits: {found['largest']} (" in shown.err

    def no_trial(*_: Any, **__: Any) -> Any:
        raise AssertionError("a trial was started")

    monkeypatch.setattr(Lab, "start", no_trial)
    assert main([*argv, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["micro_batch"] == {**found, "is_kept": True}
    # Another limit, an edited recipe, and --again are measured.
    other = ["train", "recipe.py", "--micro-batch", "auto", "--memory", str(memory + 2**20)]
    for given in (other, [*argv, "--again"]):
        assert main(given) == 1
        assert "a trial was started" in capsys.readouterr().err
    recipe.write_text(RECIPE.replace("lr=0.01", "lr=0.02"))
    assert main(argv) == 1
    assert "a trial was started" in capsys.readouterr().err


def test_what_cannot_be_split_is_said(recipe: Path) -> None:
    norm = {"norm": True}
    free = find(recipe, arguments=norm)
    assert free.largest == free.fastest == BATCH
    assert "batch norm" in free.why_whole
    with pytest.raises(RunError, match=r"not even a micro-batch of 256 fits .*batch norm"):
        find(recipe, memory_of(free, 0.4), arguments=norm)
    within = find(recipe, arguments={"loss": "contrastive"})
    assert within.largest == within.fastest == BATCH
    assert "not a mean over the batch's samples" in within.why_whole
    with pytest.raises(UsageError, match="not a mean over the batch's samples"):
        find(recipe, memory_of(within, 0.4), arguments={"loss": "contrastive"})


def test_nothing_fits_into_less_than_the_model(recipe: Path) -> None:
    with pytest.raises(RunError, match="not even a micro-batch of 1 fits into"):
        find(recipe, memory_of(find(recipe), 0.02))


def test_a_limit_below_what_the_process_holds_takes_one_trial(recipe: Path) -> None:
    said: list[str] = []
    with pytest.raises(RunError, match=r"--memory of 20 MiB is less than .* before its"):
        find(recipe, 20 * 2**20, progress=said.append)
    assert sum(line.startswith("micro-batch ") for line in said) == 1
