"""One normaliser: a step's gradient does not depend on how the step is split."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from hotlap.engine.step.choosing import make_step
from hotlap.engine.step.step import Step
from hotlap.errors import RunError, UsageError
from hotlap.techniques import StepTarget
from tests.engine.lattice import data, mean, model, squares, sum_and_count, tokens


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Give every way to write a whole number as a sum, order included."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield first, *rest


def stepped(sizes: tuple[int, ...], loss: Callable[..., Any], **options: Any) -> tuple[Any, Step]:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.0)
    step = make_step(made, loss, optimizer, target=StepTarget(None, None, "cpu"), **options)
    inputs, targets = data(sum(sizes)).tensors
    batches = zip(inputs.split(sizes), targets.split(sizes), strict=True)
    value, is_taken = step([(size, batch) for size, batch in zip(sizes, batches, strict=True)])
    assert is_taken
    return [value, *[parameter.grad for parameter in made.parameters()]], step


@pytest.mark.parametrize("loss", [mean, sum_and_count])
@pytest.mark.parametrize("items", [8, 4, 2])
def test_every_split_has_the_whole_batchs_gradient_to_the_bit(loss: Any, items: int) -> None:
    whole, _ = stepped((items,), loss)
    for sizes in compositions(items):
        split, _ = stepped(sizes, loss)
        assert all(torch.equal(a, b) for a, b in zip(split, whole, strict=True)), sizes


@pytest.mark.parametrize("items", [5, 7])
def test_a_window_that_is_no_power_of_two_agrees_to_rounding(items: int) -> None:
    whole, _ = stepped((items,), mean)
    for sizes in compositions(items):
        split, _ = stepped(sizes, mean)
        for left, right in zip(split, whole, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-6)


def test_counted_items_are_the_normaliser_and_not_micro_batches() -> None:
    inputs, targets = data(8).tensors
    counted = inputs[:, 0] > 0
    assert 0 < counted.sum() < 8
    made = model()
    (squares(made, (inputs, targets))[counted].sum() / counted.sum()).backward()
    for sizes in ((8,), (3, 5), (1,) * 8, (6, 2)):
        split, _ = stepped(sizes, tokens)
        for gradient, parameter in zip(split[1:], made.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=1e-6)


def test_dividing_by_the_number_of_micro_batches_would_not_agree() -> None:
    """The comparison can fail: this is what most trainers do."""
    whole, _ = stepped((8,), mean)
    made = model()
    inputs, targets = data(8).tensors
    for part in zip(inputs.split((3, 5)), targets.split((3, 5)), strict=True):
        (mean(made, part) / 2).backward()
    assert not torch.equal(made.weight.grad, whole[1])


def test_gradients_are_clipped_once_and_when_they_are_complete() -> None:
    whole, _ = stepped((8,), mean, clip_norm=0.5)
    norm = torch.stack([gradient.norm() for gradient in whole[1:]]).norm()
    assert float(norm) == pytest.approx(0.5, rel=1e-4)
    split, _ = stepped((3, 5), mean, clip_norm=0.5)
    for left, right in zip(split, whole, strict=True):
        torch.testing.assert_close(left, right)
    clipped, _ = stepped((3, 5), mean, clip_value=0.25)
    assert max(float(gradient.abs().max()) for gradient in clipped[1:]) == 0.25


def infinite(model: Any, batch: Any) -> torch.Tensor:
    return mean(model, batch) * float("inf")


def test_an_update_whose_loss_is_not_finite_is_left_out_and_counted() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=1.0)
    before = made.weight.detach().clone()
    micros = [(8, data(8).tensors)]
    step = make_step(made, infinite, optimizer, target=StepTarget(None, None, "cpu"))
    assert step(micros)[1] is False
    assert step.skipped == 1
    assert torch.equal(made.weight, before)
    unchecked = make_step(
        made, infinite, optimizer, target=StepTarget(None, None, "cpu"), check_finite=False
    )
    unchecked(micros)
    assert not torch.equal(made.weight, before)


def test_a_loss_that_changes_its_form_is_an_error() -> None:
    def loss(model: Any, batch: Any) -> Any:
        return (sum_and_count if len(batch[0]) == 1 else mean)(model, batch)

    with pytest.raises(RunError, match=r"\(sum, count\) for 1 of 2 micro-batches"):
        stepped((8, 1), loss)


@pytest.mark.parametrize("is_mean", [True, False])
def test_a_loss_that_is_no_mean_is_refused_where_a_step_is_split(is_mean: bool) -> None:
    def weighted(model: Any, batch: Any) -> torch.Tensor:
        counts = torch.ones(len(batch[0])) if is_mean else (batch[0][:, 0] > 0).float()
        return (squares(model, batch) * counts).sum() / counts.sum()

    stepped((8,), weighted)
    if is_mean:
        stepped((6, 2), weighted)
    else:
        with pytest.raises(UsageError, match=r"return \(sum, count\)"):
            stepped((6, 2), weighted)


def scaled(
    loss: Any, clip_norm: float | None, steps: int, lr: float, scale: float
) -> tuple[Any, list[bool], Step]:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=lr)
    target = StepTarget(None, None, "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))
    step = make_step(made, loss, optimizer, target=target, clip_norm=clip_norm)
    micros = [(4, batch) for batch in zip(*[t.split(4) for t in data(8).tensors], strict=True)]
    return made, [step(micros)[1] for _ in range(steps)], step


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_scale_that_overflows_falls_until_updates_are_taken_again(
    clip_norm: float | None,
) -> None:
    def steep(model: Any, batch: Any) -> Any:
        return mean(model, batch) * 2.0**40

    _, taken, step = scaled(steep, clip_norm, 30, lr=0.0, scale=2.0**100)
    first = taken.index(True)
    assert first > 0
    assert not any(taken[:first])
    assert all(taken[first:])
    assert step.skipped == first
    assert step.target.scaler.get_scale() == 2.0 ** (100 - first)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_steps_that_are_never_finite_are_never_taken(clip_norm: float | None) -> None:
    """The scale falls by half in each of them, and would be 0 after 200."""

    def steep(model: Any, batch: Any) -> Any:
        return mean(model, batch) + (model(batch[0]).sum() * 0).sqrt()

    made, taken, step = scaled(steep, clip_norm, 200, lr=0.1, scale=2.0**16)
    assert not any(taken) and step.skipped == 200
    assert step.target.scaler.get_scale() == 2.0**-24
    assert all(bool(weight.isfinite().all()) for weight in made.parameters())


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("loss", [mean, sum_and_count])
def test_a_scaled_step_is_the_plain_step(loss: Any, clip_norm: float | None) -> None:
    made, taken, _ = scaled(loss, clip_norm, 3, lr=0.01, scale=2.0**16)
    assert all(taken)
    plain = model()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.01)
    step = make_step(
        plain, loss, optimizer, target=StepTarget(None, None, "cpu"), clip_norm=clip_norm
    )
    for _ in range(3):
        step([(8, data(8).tensors)])
    for left, right in zip(made.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_an_overflow_restarts_the_interval_after_which_a_scale_grows(
    clip_norm: float | None,
) -> None:
    made, calls = model(), iter(range(10))

    def overflowing(model: Any, batch: Any) -> Any:
        return mean(model, batch) * (2.0**100 if next(calls) == 2 else 1.0)

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=3)
    step = make_step(
        made,
        overflowing,
        torch.optim.SGD(made.parameters(), lr=0.0),
        target=StepTarget(None, None, "cpu", scaler=scaler),
        clip_norm=clip_norm,
    )
    seen = [(step([(8, data(8).tensors)])[1], scaler.get_scale()) for _ in range(6)]
    assert [taken for taken, _ in seen] == [True, True, False, True, True, True]
    assert [math.log2(scale) for _, scale in seen] == [40, 40, 39, 39, 39, 40]
