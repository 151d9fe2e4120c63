"""Gradients that a script changes between the last backward of a step and what uses them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach.learning.inputs import Inputs
from hotlap.attach.learning.watch import WatchLearning
from hotlap.trace import event_kinds
from hotlap.trace.events import Events
from hotlap.trace.safe_calls import SafeCalls


def divide(parameter: Any) -> None:
    parameter.grad /= 2


def divide_data(parameter: Any) -> None:
    parameter.grad.data /= 2


def replace_by_half(parameter: Any) -> None:
    parameter.grad = parameter.grad / 2


def leave(parameter: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "changed"),
    [(divide, 3), (divide_data, 3), (replace_by_half, 3), (leave, 0)],
)
@pytest.mark.parametrize("clips", [False, True])
def test_gradients_that_the_script_divides_are_seen(change: Any, changed: int, clips: bool) -> None:
    watched = WatchLearning(SimpleNamespace(steps=0, bind=bool, bind_steps=bool), Events())  # pyright: ignore[reportArgumentType]
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        optimizer.zero_grad()
        for _ in range(2):
            loss = model(torch.ones(2, 3)).square().mean()
            watched.backward_begins(loss)
            loss.backward()
            watched.backward_ends()
        for parameter in model.parameters():
            change(parameter)
        if clips:
            # Clipping is told of before it changes anything.
            watched.event_happens(event_kinds.CLIP)
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        watched.step_begins(optimizer)
        optimizer.step()
    facts = watched.facts()
    assert (facts.compared_gradients, facts.changed_gradients) == (3, changed)
    assert not facts.problems and not watched.hears("backward_ends")


def test_gradients_that_are_zero_or_no_numbers_tell_nothing() -> None:
    for number in (0.0, float("nan")):
        watched = WatchLearning(SimpleNamespace(steps=0, bind=bool, bind_steps=bool), Events())  # pyright: ignore[reportArgumentType]
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        for _ in range(3):
            parameter.grad = torch.full((2,), number)
            watched.backward_ends()
            watched.step_begins(optimizer)
        assert watched.facts().compared_gradients == 0


@pytest.mark.parametrize(
    ("layers", "is_learned"),
    [
        ([nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)], True),
        ([nn.Linear(3, 4), nn.ReLU(), nn.BatchNorm1d(4), nn.Linear(4, 1)], False),
        ([nn.Linear(3, 4), nn.Linear(4, 4), nn.BatchNorm1d(4)], True),
        ([nn.Conv1d(3, 4, 1), nn.InstanceNorm1d(4)], False),
        ([nn.Linear(3, 4).requires_grad_(False), nn.Linear(4, 1)], False),
    ],
)
def test_a_first_layer_that_no_scale_of_its_input_harms(
    layers: list[Any], is_learned: bool
) -> None:
    inputs, model = Inputs(SafeCalls()), nn.Sequential(*layers)
    inputs.follow(model)
    model(255 * torch.rand(8, 3, 2) if isinstance(layers[0], nn.Conv1d) else 255 * torch.rand(8, 3))
    (found,) = inputs.facts()
    assert found.is_learned is is_learned and found.std > 8


def test_a_model_that_is_also_called_in_evaluation_mode_is_evaluated() -> None:
    watched = WatchLearning(SimpleNamespace(steps=0, bind=bool, bind_steps=bool), Events())  # pyright: ignore[reportArgumentType]
    generator, judge = nn.Sequential(nn.Dropout()), nn.Sequential(nn.Dropout())
    with torch.no_grad():
        watched.evaluation_forward_ends(generator, (), {}, None)
        watched.evaluation_forward_ends(judge, (), {}, None)
        judge.eval()
        watched.evaluation_forward_ends(judge, (), {}, None)
    found = [(each.in_training_mode, each.is_evaluated) for each in watched.facts().evaluations]
    assert found == [(1, False), (1, True), (0, True)]
