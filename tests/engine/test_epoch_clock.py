"""The sums of an epoch on a device: many steps at once, of what was there when they were taken."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hotlap.engine.clock import EpochClock
from hotlap.engine.step.device_decision import TakenFlag
from tests.fake_device import FakeCuda


def step(loss: Any, is_taken: Any = True, items: Any = None, samples: int = 8) -> Any:
    return SimpleNamespace(
        loss=loss, is_taken=is_taken, items=items, samples=samples, count=1, totals=None
    )


def added(steps: list[Any]) -> EpochClock:
    clock = EpochClock(FakeCuda())
    for each in steps:
        clock.add(each)
    return clock


def test_sums_of_more_steps_than_are_added_up_together() -> None:
    losses = [1.0 + number / 7 for number in range(150)]
    flags = [float(number % 10 == 3) for number in range(150)]
    clock = added(
        [
            step(torch.tensor(loss), TakenFlag(torch.tensor(found)), samples=8 - number % 2)
            for number, (loss, found) in enumerate(zip(losses, flags, strict=True))
        ]
    )
    assert len(clock._waiting) == 150 - 2 * 64
    taken = [
        (float(torch.tensor(loss)), 8 - number % 2)
        for number, (loss, found) in enumerate(zip(losses, flags, strict=True))
        if not found
    ]
    items = sum(count for _, count in taken)
    expected = sum(loss * count for loss, count in taken) / items
    assert clock.read()[1] == pytest.approx(expected, rel=1e-12)
    assert clock.to_json()["items"] == items


def test_what_the_task_writes_over_counts_as_it_was() -> None:
    clock, loss, items = EpochClock(FakeCuda()), torch.zeros(()), torch.zeros(())
    for number in range(5):
        loss.fill_(number)
        items.fill_(number + 1)
        clock.add(step(loss, items=items))
    assert clock.to_json() == {"steps": 5, "items": 15, "loss": 0 + 2 + 6 + 12 + 20}


def test_nothing_is_kept_of_what_gradients_would_need() -> None:
    weight = torch.ones((), requires_grad=True)
    found = TakenFlag(torch.tensor(0.0))
    clock = added([step(weight * 2, items=weight * 3), step(weight * 2, found, weight * 3)])
    assert not any(
        each.requires_grad
        for waiting in clock._waiting
        for each in waiting
        if isinstance(each, torch.Tensor)
    )
    assert clock.to_json() == {"steps": 2, "items": 6, "loss": 12}


def test_losses_that_are_not_finite_do_not_count_where_the_update_was_left_out() -> None:
    nan, left_out = torch.tensor(float("nan")), TakenFlag(torch.tensor(1.0))
    clock = added([step(nan, False), step(nan, left_out, nan), step(torch.tensor(3.0), items=2)])
    assert clock.to_json() == {"steps": 3, "items": 2, "loss": 6}
