"""`--schedule rung`: a trial's schedule ends where it is compared, and is longer once promoted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import hotlap
from hotlap import schedules
from hotlap.errors import UnknownName
from hotlap.search.own_schedule import at_rung
from hotlap.search.spec import check_schedule

MAKERS: dict[str, Callable[[Any], Any]] = {
    "cosine": schedules.warmup_cosine(total=18, warmup=3),
    "steps": lambda optimizer: lr_scheduler.StepLR(optimizer, 4, 0.1),
    "chained": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 18),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.5, 18),
    "in sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(optimizer, 0.8)],
        [3],
    ),
}


def task_of(make: Callable[[Any], Any] | None) -> hotlap.Task:
    return hotlap.Task(
        model=lambda: torch.nn.Linear(1, 1),
        loss=lambda model, batch: model(batch).sum(),
        data=torch.zeros(18, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=1,
        epochs=1,
        schedule=make,
    )


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)


def rates(make: Callable[[Any], Any], steps: int) -> list[float]:
    """Return rate and momentum of each step, one after the other."""
    owner = optimizer()
    return followed(make(owner), owner, steps)


def followed(scheduler: Any, owner: Any, steps: int) -> list[float]:
    found = []
    for number in range(steps):
        found += [owner.param_groups[0][each] for each in ("lr", "momentum")]
        owner.step()
        if number < steps - 1:
            scheduler.step()
    return found


def shortened(make: Callable[[Any], Any], until: int) -> Callable[[Any], Any]:
    made = at_rung(task_of(make), until, 18).schedule
    assert made is not None
    return made


@pytest.mark.parametrize("name", MAKERS)
def test_a_schedule_is_run_through_up_to_each_rung_and_goes_on_to_the_next(name: str) -> None:
    whole = rates(MAKERS[name], 18)
    first = optimizer()
    scheduler = shortened(MAKERS[name], 6)(first)
    assert followed(scheduler, first, 6) == pytest.approx(
        [value for step in range(0, 18, 3) for value in whole[2 * step : 2 * step + 2]]
    )
    scheduler.step()
    # Promoted: another process, with what the checkpoint holds.
    later = optimizer()
    promoted = shortened(MAKERS[name], 18)(later)
    assert promoted.state_dict().keys() == scheduler.state_dict().keys()
    later.load_state_dict(first.state_dict())
    promoted.load_state_dict(scheduler.state_dict())
    assert followed(promoted, later, 12) == pytest.approx(whole[12:])


def test_what_has_no_length_stays_as_it_is() -> None:
    task = task_of(None)
    assert at_rung(task, 6, 18) is task
    made = shortened(lambda owner: lr_scheduler.ReduceLROnPlateau(owner), 6)(optimizer())
    assert isinstance(made, lr_scheduler.ReduceLROnPlateau)


def test_a_choice_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'rung'"):
        check_schedule("rungs")
