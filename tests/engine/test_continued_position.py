"""How far a plain script's run was follows from what was counted, or is asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import hotlap
from hotlap.engine.continuing.position import Counts, find_position
from hotlap.engine.state.position import Position
from hotlap.errors import UsageError

FILE = Path("old.pth")
EACH = 7
"""Steps of an epoch."""


class Lines(IterableDataset):
    def __iter__(self) -> Any:
        return iter(torch.zeros(100, 3))


def task(per: Any = "epoch", data: Any = None) -> hotlap.Task:
    return hotlap.Task(
        model=lambda: torch.nn.Linear(3, 1),
        loss=lambda model, batch: model(batch).mean(),
        data=TensorDataset(torch.zeros(100, 3)) if data is None else data,
        optimizer=lambda model: torch.optim.Adam(model.parameters()),
        batch_size=16,
        epochs=9,
        schedule_per=per,
    )


@pytest.mark.parametrize(
    ("counts", "done", "words"),
    [
        # Updates decide whether epochs are numbered from 0 or from 1.
        (Counts(epoch=2, updates=21), 3, "from 0"),
        (Counts(epoch=3, updates=21), 3, "from 1"),
        (Counts(updates=21), 3, "21 steps"),
        (Counts(epoch=2, step=21), 3, "from 0"),
        (Counts(step=21), 3, "21 steps"),
        (Counts(epoch=2, step=20, updates=21), 3, "step = 20 is not used"),
        (Counts(epoch=2, updates=21, last_epoch=3), 3, "from 0"),
        # Lightning saves before the scheduler's step.
        (Counts(epoch=2, updates=21, last_epoch=2), 3, "from 0"),
        # Without updates the scheduler decides.
        (Counts(epoch=2, last_epoch=3), 3, "from 0, as the scheduler's last_epoch is 3"),
        (
            Counts(epoch=3, last_epoch=3),
            3,
            "last_epoch is 3; if it is numbered from 0, pass --epochs-done 4",
        ),
        (Counts(last_epoch=3), 3, "the scheduler's last_epoch is 3"),
        (Counts(epoch=3), 4, "assuming that it is numbered from 0; if not, pass --epochs-done 3"),
        (Counts(epoch=0), 1, "--epochs-done 0"),
    ],
)
def test_epochs_are_found(counts: Counts, done: int, words: str) -> None:
    position, why = find_position(counts, task(), None, FILE)
    assert position == Position(done * EACH, done, 0)
    assert words in why


def test_a_schedule_per_step_counts_steps() -> None:
    position, why = find_position(Counts(epoch=2, last_epoch=21), task("step"), None, FILE)
    assert position == Position(21, 3, 0) and "from 0" in why
    with pytest.raises(UsageError, match="schedule_per"):
        find_position(Counts(epoch=2, updates=21, last_epoch=3), task("step"), None, FILE)


@pytest.mark.parametrize(
    "counts",
    [
        Counts(epoch=9, updates=21),
        Counts(epoch=2, updates=23),
        Counts(updates=23),
        Counts(epoch=2, updates=21, last_epoch=5),
        Counts(epoch=2, updates=21, last_epoch=1),
        Counts(epoch=2, last_epoch=5),
        Counts(epoch=2, step=6),
        Counts(),
    ],
)
def test_what_does_not_fit_together_is_refused_and_can_be_said(counts: Counts) -> None:
    with pytest.raises(UsageError, match="--epochs-done 3") as told:
        find_position(counts, task(), None, FILE)
    for name in ("epoch", "updates", "last_epoch"):
        count = getattr(counts, name)
        assert count is None or f"is {count}" in str(told.value)
    position, why = find_position(counts, task(), 4, FILE)
    assert position == Position(28, 4, 0)
    assert "4 epochs done, as --epochs-done says" in why


def test_a_file_from_inside_an_epoch_continues_inside_it_once_the_epochs_are_given() -> None:
    position, why = find_position(Counts(updates=31), task(), 4, FILE)
    assert position == Position(31, 4, 3)
    assert "3 steps of epoch 5" in why
    with pytest.raises(UsageError, match=r"counted 42 updates.* pass --epochs-done 6"):
        find_position(Counts(updates=42), task(), 4, FILE)


def test_a_stream_needs_epochs_and_steps() -> None:
    stream = task(data=Lines())
    position, why = find_position(Counts(epoch=2, updates=40), stream, None, FILE)
    assert position == Position(40, 3, 0)
    assert "assuming that it is numbered from 0" in why
    assert find_position(Counts(step=40), stream, 2, FILE)[0] == Position(40, 2, 0)
    with pytest.raises(UsageError, match="how many steps"):
        find_position(Counts(epoch=2), stream, None, FILE)
    with pytest.raises(UsageError, match="--epochs-done"):
        find_position(Counts(updates=40), stream, None, FILE)
