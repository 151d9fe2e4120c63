"""A step that is left out leaves nothing behind, and one that cannot be is refused in words."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.engine.evaluation_guard import evaluation_mode
from hotlap.engine.step.choosing import make_step
from hotlap.engine.step.step import Step
from hotlap.errors import RunError, UsageError
from hotlap.techniques import StepTarget


def step_of(model: nn.Module, loss: Any, **options: Any) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return make_step(model, loss, optimizer, target=StepTarget(None, None, "cpu"), **options)


def held(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def test_a_gradient_that_is_not_finite_is_left_out_though_its_loss_is() -> None:
    layer = nn.Linear(2, 1)
    before = held(layer)

    def steep_at_zero(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        # Nought, and its slope is not a number.
        return (model(batch) - model(batch)).square().sqrt().mean()

    step = step_of(layer, steep_at_zero, clip_norm=1.0)
    loss, is_taken = step([(3, torch.ones(3, 2))])
    assert math.isfinite(float(loss)) and not is_taken
    assert step.skipped == 1
    assert same(held(layer), before)


@pytest.mark.parametrize("split", [False, True])
def test_statistics_forget_a_batch_that_was_left_out(split: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    step = step_of(model, lambda model, batch: model(batch).mean())
    batch = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    assert step([(4, batch)])[1]
    before = held(model)
    broken = batch.clone()
    broken[0, 0] = math.nan
    micros = [(2, broken[:2]), (2, broken[2:])] if split else [(4, broken)]
    assert not step(micros)[1]
    assert same(held(model), before)
    assert step([(4, batch)])[1]
    assert not same(held(model), before)


def test_a_count_is_one_number() -> None:
    def per_sample(model: nn.Module, batch: torch.Tensor) -> Any:
        return model(batch).sum(), torch.ones(len(batch))

    for micros in ([(2, torch.ones(2, 2))], [(1, torch.ones(1, 2)), (2, torch.ones(2, 2))]):
        with pytest.raises(RunError, match=r"a count of shape \(2,\)"):
            step_of(nn.Linear(2, 1), per_sample, check_finite=False)(micros)


@pytest.mark.parametrize(("weight", "is_mean"), [(1.0, True), (1.2, False)])
def test_a_loss_that_weighs_samples_a_little_is_no_mean(weight: float, is_mean: bool) -> None:
    """Its parts are off by some percent, which no rounding is."""

    def weighted(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        weights = 1 + (weight - 1) * (batch[:, 0] > 0).float()
        return (model(batch)[:, 0].square() * weights).sum() / weights.sum()

    batch = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    step = step_of(nn.Linear(2, 1), weighted)
    micros = [(8, batch), (8, batch.flip(1))]
    if is_mean:
        assert step(micros)[1]
        return
    with pytest.raises(UsageError, match=r"differs by [1-9]\.\d* %"):
        step(micros)


def test_a_look_at_a_model_changes_nothing_of_it() -> None:
    """Layers that are frozen, statistics, weights that a look-up writes to, and what is drawn."""
    model = nn.Sequential(
        nn.Embedding(4, 3, max_norm=0.1), nn.BatchNorm1d(3, momentum=1.0), nn.Dropout(0.5)
    )
    model.train()
    model[1].eval()
    before, modes = held(model), [module.training for module in model.modules()]
    state = torch.get_rng_state()
    with evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        model.train()
        model(torch.tensor([0, 1, 2, 3]))
        assert not same(held(model), before)
    assert same(held(model), before)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
