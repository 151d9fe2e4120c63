"""A run that is taken up draws and counts on where it was left, and begins with sound weights."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.checkpoint.foreign import fit_to_model
from hotlap.errors import UsageError
from hotlap.plan import Plan

DATA = TensorDataset(torch.arange(32.0).view(16, 2) / 32, torch.arange(16) % 2)


def task(loss: Any, **options: Any) -> hotlap.Task:
    given = {
        "model": lambda: nn.Linear(2, 2),
        "loss": loss,
        "data": DATA,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "batch_size": 4,
        "shuffle": False,
    }
    return hotlap.Task(**{**given, **options})


DRAWS = {
    "python": random.random,
    "python, in pairs": lambda: random.gauss(0, 1),
    "numpy": np.random.random,
    "numpy, in pairs": np.random.standard_normal,
    "torch": lambda: float(torch.rand(())),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_loss_draws_goes_on_where_it_was(name: str, tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1]) * (2 + DRAWS[name]())

    whole = hotlap.train(task(loss, steps=6)).model.state_dict()
    hotlap.train(task(loss, steps=3), run_dir=tmp_path)
    for _ in range(5):
        DRAWS[name]()
    taken_up = hotlap.train(task(loss, steps=6), run_dir=tmp_path, resume="auto")
    assert taken_up.steps == 6
    for key, value in taken_up.model.state_dict().items():
        assert torch.equal(value, whole[key])


def test_updates_that_were_left_out_before_are_counted(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = nn.functional.cross_entropy(model(batch[0]), batch[1])
        # The first batch of an epoch.
        return value * math.nan if float(batch[0][0, 0]) == 0 else value

    assert hotlap.train(task(loss, steps=3), run_dir=tmp_path).skipped_steps == 1
    assert hotlap.train(task(loss, steps=7), run_dir=tmp_path, resume="auto").skipped_steps == 2


@pytest.mark.parametrize("value", [math.nan])
def test_weights_that_are_no_numbers_are_refused(value: float) -> None:
    wanted = nn.Linear(2, 2).state_dict()
    assert fit_to_model(dict(wanted), wanted, Path("w.pt")).keys() == wanted.keys()
    broken = {**wanted, "bias": torch.tensor([1.0, value])}
    with pytest.raises(UsageError, match="bias"):
        fit_to_model(broken, wanted, Path("w.pt"))


def test_an_optimizers_state_lies_in_memory_as_its_parameter_does(tmp_path: Path) -> None:
    """A fused kernel goes through both by address: elsewhere laid, it would take other elements."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]).mean((2, 3)), batch[1])

    def images(steps: int) -> hotlap.Task:
        generator = torch.Generator().manual_seed(0)
        return task(
            loss,
            steps=steps,
            model=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)),
            data=TensorDataset(torch.randn(16, 3, 6, 6, generator=generator), DATA.tensors[1]),
            optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        )

    plan = Plan({"channels_last": {}, "optimizer": {"implementation": "fused"}})
    whole = hotlap.train(images(6), plan)
    assert [row["state"] for row in whole.techniques] == ["applied", "applied"]
    hotlap.train(images(3), plan, run_dir=tmp_path)
    taken_up = hotlap.train(images(6), plan, run_dir=tmp_path, resume="auto").model.state_dict()
    for key, value in whole.model.state_dict().items():
        assert torch.equal(taken_up[key], value)
