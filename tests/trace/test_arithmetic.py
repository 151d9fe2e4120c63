"""What a step computes and keeps: counted exactly where a formula is known, and said where not."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from hotlap.trace.arithmetic import OperationCounter, StepCounter
from hotlap.trace.costs import StepCosts


@pytest.fixture(autouse=True)
def _stance() -> Iterator[None]:
    yield
    torch.compiler.set_stance("default")


def counted(work: Callable[[], Any]) -> OperationCounter:
    with OperationCounter() as counter:
        work()
    return counter


def test_products_are_counted_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    inputs = torch.randn(16, 64)
    forward = 2 * 16 * (64 * 32 + 32 * 10)
    # The inputs have no gradient: the first layer computes that of its weights only.
    backward = 2 * 16 * (64 * 32 + 2 * 32 * 10)
    assert counted(lambda: model(inputs)).flops == {"float32": forward}
    assert counted(lambda: model(inputs).sum().backward()).flops["float32"] == forward + backward
    wide = counted(lambda: model.double()(inputs.double()))
    assert wide.flops == {"float64": forward}


def test_convolutions_are_counted() -> None:
    layer = nn.Conv2d(3, 8, 3, padding=1)
    images = torch.randn(4, 3, 10, 10)
    one = 2 * 4 * 8 * 10 * 10 * 3 * 9
    assert counted(lambda: layer(images)).flops.total() == one
    assert counted(lambda: layer(images).sum().backward()).flops.total() == 2 * one


def test_causal_attention_counts_half() -> None:
    query = torch.randn(2, 4, 32, 8)
    attend = nn.functional.scaled_dot_product_attention
    whole = counted(lambda: attend(query, query, query)).flops.total()
    assert whole == 2 * (2 * 2 * 4 * 32 * 32 * 8)
    assert counted(lambda: attend(query, query, query, is_causal=True)).flops.total() == whole // 2


def test_an_operator_of_which_no_formula_is_known_is_named() -> None:
    layer = nn.LSTM(8, 8)
    assert counted(lambda: layer(torch.randn(4, 2, 8))).uncounted
    assert not counted(lambda: torch.ones(3).add(1).softmax(0)).uncounted


def steps(count: int, seconds: float = 60.0) -> StepCosts | None:
    model = nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.Adam(model.parameters())
    counter = StepCounter(seconds)
    for number in range(count):
        # A short batch, as an epoch may end with, is not what is reported.
        model(torch.randn(2 if number == 2 else 16, 8)).sum().backward()
        counter.note_gradients(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        if counter.step_ends():
            break
    return counter.costs("cpu")


def test_the_step_in_the_middle_and_its_state() -> None:
    costs = steps(10)
    assert costs is not None
    assert costs.flops == {"float32": 2 * (2 * 16 * 8 * 4)}
    # Weights, gradients, both averages, and Adam's count of steps: each read and written.
    assert costs.state_bytes == 2 * (4 * (8 * 4) * 4 + 4)
    assert StepCosts.from_json(costs.to_json()) == costs


def test_a_slow_step_is_counted_alone_and_none_gives_no_costs() -> None:
    assert steps(1) is None
    assert not _get_current_dispatch_mode_stack()
    assert steps(2, seconds=0.0) is not None
