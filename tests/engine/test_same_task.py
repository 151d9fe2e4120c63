"""A run goes on only with what it was begun with: each part of the task, one at a time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.errors import UsageError

DATA = TensorDataset(torch.arange(96.0).view(24, 4), torch.arange(24) % 2)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0] / 96), batch[1])


def doubled(sample: Any) -> Any:
    return 2 * sample[0], sample[1]


def doubled_batch(batch: Any) -> Any:
    return 2 * batch[0], batch[1]


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": lambda: nn.Linear(4, 2),
        "loss": loss,
        "data": DATA,
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "batch_size": 4,
        "steps": 4,
        "schedule": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3),
    }
    return hotlap.Task(**{**given, **options})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("run")
    hotlap.train(task(), run_dir=run_dir)
    return run_dir


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("seed", 1),
        ("shuffle", False),
        ("drop_last", True),
        ("clip_norm", 1.0),
        ("clip_value", 1.0),
        ("schedule_per", "epoch"),
        ("transform", doubled),
        ("batch_transform", doubled_batch),
        ("batch_size", 8),
        ("data", TensorDataset(*(tensor[:20] for tensor in DATA.tensors))),
    ],
)
def test_a_run_does_not_go_on_with_another(option: str, value: Any, saved: Path) -> None:
    named = {"data": "samples", "batch_size": "logical_batch"}.get(option, option)
    with pytest.raises(UsageError, match=f"by another task: {named} was"):
        hotlap.train(task(steps=6, **{option: value}), run_dir=saved, resume="auto")


def test_it_goes_on_with_the_same_one_made_longer(saved: Path, tmp_path: Path) -> None:
    done = hotlap.train(task(steps=6), run_dir=tmp_path, resume=str(saved))
    assert done.steps == 6
