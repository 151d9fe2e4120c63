"""Every update is repeated on drawn elements: honest ones agree, small changes show."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from hotlap.lab.updates import UpdateEstimate, estimate_updates
from hotlap.trial import gradient_rows
from hotlap.trial.elements import Elements
from hotlap.trial.gradient_rows import RowReader, RowWriter, end_rows
from hotlap.trial.twin import Chain
from hotlap.trial.update_follower import BLOCK, Follower, _is_layout_known, _places_in_stream

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True},
    "Adam": {"lr": 1e-3, "weight_decay": 1e-2},
    "AdamW": {"lr": 1e-3, "amsgrad": True},
    "NAdam": {"lr": 1e-3},
    "RAdam": {"lr": 1e-3},
    "RMSprop": {"lr": 1e-3, "momentum": 0.9, "centered": True},
    "Adagrad": {"lr": 1e-2},
    "Adadelta": {"lr": 1.0},
    "Adamax": {"lr": 1e-3},
    "ASGD": {"lr": 1e-2},
    "Rprop": {"lr": 1e-3},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))


def train(
    optimizer: torch.optim.Optimizer,
    model: nn.Module,
    follower: Follower,
    steps: int = 12,
    change: Callable[[int], None] = lambda _: None,
) -> list[bool]:
    torch.manual_seed(1)
    odd = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(torch.randn(8, 1, 8, 8)), torch.arange(8) % 3)
        loss.backward()
        change(step)
        follower.update_begins(0, optimizer)
        odd.append(follower.has_gradients(0, optimizer))
        optimizer.step()
        follower.update_ends(0, optimizer)
    return odd


def followed(optimizer: torch.optim.Optimizer, model: nn.Module) -> UpdateEstimate:
    follower = Follower(seed=3)
    train(optimizer, model, follower)
    found = estimate_updates(follower.report())
    assert found is not None, follower.problem
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("implementation", ["single", "foreach", "fused"])
def test_honest_updates_are_right(name: str, implementation: str) -> None:
    model, kind = network(), getattr(torch.optim, name)
    more = {} if implementation == "single" else {implementation: True}
    try:
        optimizer = kind(model.parameters(), **OPTIMIZERS[name], **more)
    except (TypeError, RuntimeError):
        pytest.skip(f"{name} has no {implementation} implementation")
    found = followed(optimizer, model)
    assert found.is_right, found


def in_step(optimizer: torch.optim.Optimizer, key: str, factor: float) -> torch.optim.Optimizer:
    """Change a hyperparameter while the optimizer steps, unseen from outside."""

    def by(factor: float) -> Callable[..., None]:
        def changed(optimizer: Any, *_: Any) -> None:
            for group in optimizer.param_groups:
                value = group[key]
                scaled = (value[0], value[1] * factor) if key == "betas" else value * factor
                group[key] = scaled

        return changed

    optimizer.register_step_pre_hook(by(factor))
    optimizer.register_step_post_hook(by(1 / factor))
    return optimizer


@pytest.mark.parametrize(
    ("key", "factor"), [("lr", 1 + 3e-5), ("weight_decay", 1.05), ("betas", 1 - 1e-4), ("eps", 3.0)]
)
def test_a_small_change_inside_the_update_is_seen(key: str, factor: float) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2, eps=1e-6)
    assert not followed(in_step(optimizer, key, factor), model).is_right


def test_state_that_is_rounded_inside_the_update_is_seen() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def narrow(optimizer: Any, *_: Any) -> None:
        for state in optimizer.state.values():
            state["exp_avg"].copy_(state["exp_avg"].bfloat16())

    optimizer.register_step_post_hook(narrow)
    found = followed(optimizer, model)
    assert "exp_avg" in found.state_at and not found.is_right


def test_an_optimizer_that_draws_leaves_the_run_its_random_numbers() -> None:
    class Noisy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            scale = 1 + 1e-3 * (random.random() + numpy.random.rand() + float(torch.rand(())))
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(parameter.grad * scale, alpha=group["lr"])

    def draw(follower: Follower) -> list[Any]:
        random.seed(5)
        numpy.random.seed(5)
        model = network()
        train(Noisy(model.parameters(), lr=0.1), model, follower)
        return [random.random(), numpy.random.rand(), float(torch.rand(())), model[0].weight[0]]

    class Deaf(Follower):
        def update_ends(self, key: Any, optimizer: Any) -> None:
            pass

    plain, followed = draw(Deaf(seed=3)), draw(Follower(seed=3))
    assert plain[:3] == followed[:3] and torch.equal(plain[3], followed[3])


@pytest.mark.parametrize("count", [1, 40, 700, 5000])
def test_the_state_of_torchs_generator_says_how_much_was_drawn(count: int) -> None:
    places = []
    for _ in range(3):
        torch.rand(count)
        places.append(_places_in_stream()[0])
    assert [(b - a) % BLOCK for a, b in pairwise(places)] == [count % BLOCK] * 2


def test_what_cannot_be_repeated_on_elements_says_why() -> None:
    model, follower = network(), Follower(seed=3)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    train(optimizer, model, follower)
    assert estimate_updates(follower.report()) is None
    assert "its state holds a tensor of shape" in follower.problem


def test_another_gradient_in_a_single_step_is_odd(tmp_path: Path) -> None:
    file = tmp_path / "gradients"
    plain, model = Follower(seed=3, writer=RowWriter(file)), network()
    train(torch.optim.Adam(model.parameters(), lr=1e-3), model, plain)
    end_rows(file)

    beside, again = Follower(seed=3, beside=RowReader(file)), network()
    odd = train(torch.optim.Adam(again.parameters(), lr=1e-3), again, beside)
    assert not any(odd) and max(value or 0 for value in beside.gradient_distances) == 0

    lying, other = Follower(seed=3, beside=RowReader(file)), network()

    def turn(step: int) -> None:
        if step == 7:
            for parameter in other.parameters():
                assert parameter.grad is not None
                parameter.grad.neg_()

    odd = train(torch.optim.Adam(other.parameters(), lr=1e-3), other, lying, change=turn)
    assert odd.index(True) == 7


def test_without_the_gradients_of_the_run_beside_it_nothing_is_said_of_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradient_rows, "_LONGEST_S", 0.01)
    follower, model = Follower(seed=3, beside=RowReader(tmp_path / "never")), network()
    train(torch.optim.Adam(model.parameters(), lr=1e-3), model, follower)
    assert "15 minutes" in follower.problem
    assert estimate_updates(follower.report()) is None


def test_who_has_a_gradient_is_noted_for_each_parameter() -> None:
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    weights[0].grad, weights[1].grad = torch.ones(3), torch.zeros(3)
    chain = Chain(optimizer, seed=0)
    chain.begin(optimizer)
    chain.take_gradients(optimizer)
    assert chain.letters == "gzn"


def test_drawn_elements_do_not_depend_on_the_layout() -> None:
    values = torch.randn(4, 8, 6, 6)
    drawn = Elements(values, 50, torch.Generator().manual_seed(0))
    apart = values.to(memory_format=torch.channels_last)
    assert (drawn.of(values) == drawn.of(apart)).all()
    # A format that fewer operators take.
    tiny = values.to(torch.float8_e5m2)
    assert (drawn.of(tiny) == drawn.of(tiny.float())).all()
    assert 40 < len(drawn.of(values)) <= 50


def test_an_optimizer_that_draws_and_hooks_of_the_users_are_left_alone() -> None:
    class Noisy(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.add_(torch.randn_like(parameter), alpha=1e-3)
            return super().step(closure)

    def drawn(follower: Follower | None) -> tuple[float, int]:
        model, calls = network(), [0]
        optimizer = Noisy(model.parameters(), lr=0.1)

        def count(*_: Any) -> None:
            calls[0] += 1

        handle = register_optimizer_step_post_hook(count)
        try:
            if follower is not None:
                train(optimizer, model, follower, steps=3)
            else:
                train(optimizer, model, Silent(seed=0), steps=3)
        finally:
            handle.remove()
        return float(torch.rand(1)), calls[0]

    assert drawn(Follower(seed=3)) == drawn(None)


class Silent(Follower):
    """Follows nothing."""

    def update_begins(self, *_: Any) -> None: ...

    def has_gradients(self, *_: Any) -> bool:
        return False

    def update_ends(self, *_: Any) -> None: ...


def test_complex_parameters_are_two_numbers_each() -> None:
    weight = nn.Parameter(torch.randn(20, dtype=torch.complex64))
    optimizer, follower = torch.optim.Adam([weight], lr=1e-2), Follower(seed=3)
    for _ in range(5):
        optimizer.zero_grad()
        (weight * weight.conj()).real.sum().backward()
        follower.update_begins(0, optimizer)
        follower.has_gradients(0, optimizer)
        optimizer.step()
        follower.update_ends(0, optimizer)
    found = estimate_updates(follower.report())
    assert found is not None and found.is_right, (found, follower.problem)


def test_strange_groups_and_gradients_end_no_script() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([{"params": [weight], "mask": torch.ones(4)}], lr=0.1)
    follower = Follower(seed=3)
    with numpy.errstate(all="raise"):
        weight.grad = torch.tensor([1.0, float("inf"), float("nan"), 0.0])
        follower.update_begins(0, optimizer)
        follower.has_gradients(0, optimizer)
        follower.update_ends(0, optimizer)
    assert len(follower.updates) == 1


def test_a_default_device_of_the_script_is_not_that_of_what_follows_it() -> None:
    def follow() -> dict[str, Any]:
        torch.manual_seed(0)
        model, follower = nn.Linear(300, 9, device="cpu"), Follower(seed=3)
        optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZERS["SGD"])
        for _ in range(4):
            model(torch.ones(2, 300, device="cpu")).square().mean().backward()
            follower.update_begins(0, optimizer)
            follower.has_gradients(0, optimizer)
            optimizer.step()
            follower.update_ends(0, optimizer)
        return follower.report()

    expected = follow()
    _is_layout_known.cache_clear()
    # The one that nothing can be read from: of another, half would go unnoticed.
    with torch.device("meta"):
        found = follow()
    assert not found["problem"] and found["updates"][0]["place"]
    assert found == expected
