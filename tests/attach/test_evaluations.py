"""Forwards in training mode, with gradients on, that no backward uses."""

import inspect
import sys
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach.learning.evaluations import Evaluations
from hotlap.attach.learning.losses import Modes


class Watched:
    """A model, each forward of which is told, as the seams tell it."""

    def __init__(self) -> None:
        self.evaluations = Evaluations(Modes())
        self.model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1))
        self.steps = 0

    def __call__(self, wrap: Any = lambda output: output) -> torch.Tensor:
        output = self.model(torch.ones(2, 3))
        self.evaluations.add_training(self.model, wrap(output), sys._getframe(1), self.steps)
        return output

    def found(self) -> list[tuple[int, int, int, int]]:
        facts = self.evaluations.facts(self.steps)
        return [(each.forwards, each.passes, each.unused, each.in_training_mode) for each in facts]


def test_a_line_is_an_evaluation_if_no_backward_reaches_what_it_gave() -> None:
    watched = Watched()
    for watched.steps in range(5):
        for _ in range(3):
            watched()
        watched().sum().backward()
        watched(lambda output: output)
    # A backward may follow those of the newest step.
    assert watched.found() == []
    watched.steps += 1
    # What comes before the first step trains nothing.
    assert watched.found() == [(12, 4, 12, 12), (4, 4, 4, 4)]
    assert all(each.where for each in watched.evaluations.facts(watched.steps))


def test_a_line_that_trains_is_none() -> None:
    watched = Watched()
    for watched.steps in range(1, 5):
        # As where a function is used for both, several views make one loss, or gradients are taken.
        sum(watched().sum() for _ in range(3)).backward()
        watched(lambda output: {"logits": [output]}).mean().backward()
        torch.autograd.grad(watched().sum(), list(watched.model.parameters()))
    assert watched.found() == []
    # Of what has no graph of torch's nobody can tell.
    for watched.steps in range(5, 9):
        watched(lambda output: output.detach())
    assert watched.found() == []


def test_a_function_that_trains_may_evaluate_as_well() -> None:
    watched = Watched()

    def run() -> torch.Tensor:
        return watched()

    for watched.steps in range(1, 5):
        run().sum().backward()
        for _ in range(2):
            run()
    watched.steps += 1
    (found,) = watched.evaluations.facts(watched.steps)
    assert (found.forwards, found.unused) == (8, 8)
    # It is the call that says which of both is meant.
    line = inspect.getsourcelines(test_a_function_that_trains_may_evaluate_as_well)
    number = line[1] + line[0].index("            run()\n")
    assert found.where.endswith(f"test_evaluations.py:{number}")


def test_the_newest_forwards_may_still_be_used() -> None:
    watched = Watched()
    watched.steps = 1
    total = torch.zeros(())
    for _ in range(4):
        total = total + watched().sum()
    assert watched.found() == []
    watched.steps = 2
    assert watched.found() == [(4, 1, 4, 4)]
    total.backward()
    assert watched.found() == []


def update_bn_stats(model: nn.Module, batches: list[torch.Tensor]) -> None:
    for batch in batches:
        model(batch)


@pytest.mark.parametrize("is_torchs", [True, False])
def test_to_compute_the_statistics_of_batch_norm_is_no_evaluation(is_torchs: bool) -> None:
    evaluations, batches = Evaluations(Modes()), [torch.ones(4, 3)] * 3
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

    def tell(module: nn.Module, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled():
            evaluations.add_training(module, output, sys._getframe(1), 1)
        else:
            evaluations.add(module, inputs, output, "a.py:1", 1)

    model.register_forward_hook(tell)
    if is_torchs:
        torch.optim.swa_utils.update_bn(batches, model)
    else:
        update_bn_stats(model, batches)
    assert evaluations.facts(2) == ()
    # By another name it is one.
    with torch.set_grad_enabled(not is_torchs):
        for batch in batches:
            model(batch)
    (found,) = evaluations.facts(2)
    assert found.forwards == found.in_training_mode == 3
