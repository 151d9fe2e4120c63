"""A schedule that does not fit the run is told before the first step."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lr
from torch.utils.data import TensorDataset

import hotlap
from hotlap.engine.build import build
from hotlap.errors import PlanError, UsageError


def task(schedule: Any, **given: Any) -> hotlap.Task:
    return hotlap.Task(
        model=lambda: nn.Linear(2, 1),
        loss=lambda model, batch: model(batch[0]).square().mean(),
        data=TensorDataset(torch.randn(20, 2)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batch_size=4,
        schedule=schedule,
        **({"epochs": 2} | given),
    )


TOO_LONG = [
    lambda o: lr.OneCycleLR(o, max_lr=0.1, total_steps=11),
    lambda o: lr.CosineAnnealingLR(o, T_max=11),
    lambda o: lr.LinearLR(o, total_iters=11),
    lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, total_iters=3), lr.CosineAnnealingLR(o, T_max=8)], milestones=[3]
    ),
    hotlap.schedules.warmup_cosine(total=11, warmup=2),
    hotlap.schedules.warmup_stable_decay(total=11, decay=2),
]


@pytest.mark.parametrize("schedule", TOO_LONG)
def test_a_schedule_longer_than_the_run_is_refused(schedule: Any) -> None:
    with pytest.raises(UsageError, match="11 steps, and the run has only 10 steps"):
        build(task(schedule), hotlap.Plan())
    longer = task(schedule, epochs=None, steps=11)
    assert hotlap.train(longer).steps == 11


def test_one_cycle_may_not_end_before_the_run_does() -> None:
    with pytest.raises(UsageError, match="total_steps=10"):
        build(task(lambda o: lr.OneCycleLR(o, max_lr=0.1, total_steps=9)), hotlap.Plan())


def test_epochs_are_counted_where_the_schedule_steps_by_epoch() -> None:
    def cosine(length: int) -> Any:
        return lambda o: lr.CosineAnnealingLR(o, T_max=length)

    assert hotlap.train(task(cosine(2), schedule_per="epoch")).steps == 10
    with pytest.raises(UsageError, match="3 epochs, and the run has only 2 epochs"):
        build(task(cosine(3), schedule_per="epoch"), hotlap.Plan())


def test_schedules_without_a_length_are_taken_as_they_are() -> None:
    for schedule in (
        lambda o: lr.StepLR(o, step_size=100),
        lambda o: lr.CosineAnnealingWarmRestarts(o, T_0=100),
        lambda o: lr.LambdaLR(o, lambda step: 1.0),
    ):
        assert hotlap.train(task(schedule)).steps == 10


def test_a_micro_batch_larger_than_the_batch_is_refused() -> None:
    with pytest.raises(PlanError, match=r"size=5 in .* is larger than the batch size 4"):
        build(task(None), hotlap.Plan({"micro_batch": {"size": 5}}))
    assert build(task(None), hotlap.Plan({"micro_batch": {"size": 3}})).source.micro == 3
