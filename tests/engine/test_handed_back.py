"""After a run, however it ended, the user has a model that is theirs."""

import pickle
from typing import Any

import pytest
import torch
from torch import nn

import hotlap
from hotlap.engine.build import build
from hotlap.engine.state.content import capture
from hotlap.engine.state.position import Position
from hotlap.engine.steps import steps_of
from hotlap.plan import Plan
from tests.engine.lattice import data, mean
from tests.engine.test_run import Fixed, adam, make, network

MASTERS = Plan({"master_weights": {}})


class Positions(nn.Module):
    """Adds a table that is no parameter, as transformers do, between two layers."""

    def __init__(self, writes: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.writes = nn.Linear(4, 8), nn.Linear(8, 2), writes
        self.register_buffer("table", torch.arange(8.0) / 3)
        self.register_buffer("other", torch.arange(8.0) / 7, persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.writes:
            self.table.add_(1)
        return self.last(self.first(values) + self.table * self.other)


def frozen() -> nn.Module:
    module = network()
    module[0].requires_grad_(False)
    return module


def last_alone(module: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(module[3].parameters(), lr=0.05)


@pytest.mark.parametrize("kind", [network, Positions])
def test_a_model_with_masters_can_be_called_and_pickled(kind: Any) -> None:
    done = hotlap.train(make(model=kind, held_out=Fixed()), MASTERS)
    inputs = torch.stack([Fixed()[index][0] for index in range(4)])
    assert done.techniques[0]["state"] == "applied"
    assert done.model(inputs).dtype == torch.float32
    assert torch.equal(pickle.loads(pickle.dumps(done.model))(inputs), done.model(inputs))


def test_what_is_frozen_keeps_its_bits_under_masters(tmp_path: Any) -> None:
    built = build(make(model=frozen, optimizer=last_alone), MASTERS)
    before = built.weights["0.weight"].clone()
    for _ in steps_of(built):
        pass
    saved = capture(built, Position())[0]["model"]
    built.end()
    assert saved["0.weight"].dtype == torch.float32
    for weight in (built.model[0].weight, saved["0.weight"]):
        assert torch.equal(weight, before)
        assert not torch.equal(weight, weight.to(torch.bfloat16).float())


@pytest.mark.parametrize("recomputed", [{}, {"recompute": {}}])
def test_buffers_are_narrow_in_a_step_and_the_models_own_outside_of_it(
    recomputed: dict[str, Any],
) -> None:
    seen: list[torch.dtype] = []

    def loss(module: Any, batch: Any) -> torch.Tensor:
        value = mean(module, batch)
        seen.append(module.table.dtype)
        return value

    own = Positions()
    tables = own.table.clone(), own.other.clone()
    task = make(model=lambda: own, loss=loss, data=data(8), epochs=2)
    for step in hotlap.steps(task, Plan({"master_weights": {}, **recomputed})):
        assert torch.isfinite(step.loss)
        assert own.table.dtype == own.other.dtype == torch.float32
    assert set(seen) == {torch.bfloat16}
    assert torch.equal(own.table, tables[0]) and torch.equal(own.other, tables[1])


def test_a_buffer_that_the_forward_writes_to_is_refused_under_masters() -> None:
    task = make(model=lambda: Positions(writes=True))
    with pytest.raises(hotlap.UsageError, match="writes to its buffer table"):
        hotlap.train(task, MASTERS)


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2)])
        self.head = nn.Linear(4, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(values))


@pytest.mark.parametrize("where", ["progress", "optimizer", "loss"])
def test_a_run_that_fails_gives_the_model_back(where: str) -> None:
    own = Blocks()

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError

    options = {} if where == "progress" else {where: fail}
    with pytest.raises((ZeroDivisionError, hotlap.RunError)):
        hotlap.train(
            make(model=lambda: own, **options),
            Plan({"recompute": {}, "master_weights": {}, "deterministic": {}}),
            progress=fail,
        )
    assert not any("forward" in vars(module) for module in own.modules())
    assert {parameter.dtype for parameter in own.parameters()} == {torch.float32}
    assert not own._forward_hooks and not own._forward_pre_hooks
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_loop_that_was_never_begun_leaves_nothing_set() -> None:
    steps = hotlap.steps(make(), Plan({"deterministic": {}}))
    assert torch.are_deterministic_algorithms_enabled()
    del steps
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_first_item_of_a_loop_that_is_undone_is_its_first_step() -> None:
    numbers = [step.number for step in hotlap.steps(make(optimizer=adam), MASTERS)]
    assert numbers == list(range(1, 10))
