"""The state of a script's optimizer goes to the parameters that it belongs to, by name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hotlap
from hotlap.checkpoint.foreign_run import read_run
from hotlap.engine.build import build
from hotlap.engine.continuing.continuing import continue_run
from hotlap.engine.steps import steps_of
from hotlap.errors import UsageError
from tests.engine.test_continuing import adam, loss, momentum, plain_sgd

EPOCHS, SAVED, EACH = 3, 2, 4


class Net(nn.Module):
    """Layers of one shape, in an order that the arithmetic does not depend on."""

    def __init__(self, order: str = "first norm second", is_tied: bool = False) -> None:
        super().__init__()
        for name in order.split():
            self.add_module(name, nn.BatchNorm1d(5) if name == "norm" else nn.Linear(5, 5))
        if is_tied:
            # Of two names, the first in the order of the modules is that of the parameter.
            self.get_submodule("second").weight = self.get_submodule("first").weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(inputs)).relu())


OWN, OTHER = "first norm second", "second norm first"


def data() -> TensorDataset:
    inputs = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(inputs, inputs.argmax(1))


def two_groups(model: nn.Module) -> Any:
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() == 1]
    return torch.optim.Adam([{"params": matrices}, {"params": others, "lr": 0.01}], lr=0.02)


def of_some(model: nn.Module) -> Any:
    some = [each for name, each in model.named_parameters() if "norm" not in name]
    return torch.optim.Adam(some, lr=0.02)


def by_hand(model: Any) -> Any:
    layers = model.second, model.first, model.norm
    return torch.optim.Adam([each for layer in layers for each in layer.parameters()], lr=0.02)


def with_names(model: nn.Module) -> Any:
    return torch.optim.Adam(model.named_parameters(), lr=0.02)


def task(optimizer: Any = adam, **options: Any) -> hotlap.Task:
    return hotlap.Task(
        model=lambda: Net(**options),
        loss=loss,
        data=data(),
        optimizer=optimizer,
        batch_size=16,
        epochs=EPOCHS,
        shuffle=False,
    )


class Script:
    """A plain script: its checkpoint, the state of each parameter there, and later losses."""

    def __init__(self, path: Path, optimizer: Any = adam, **options: Any) -> None:
        torch.manual_seed(3)
        model = Net(**options)
        made = optimizer(model)
        self.path, self.losses = path, []
        self.states: dict[str, dict[str, Any]] = {}
        for epoch in range(EPOCHS):
            for batch in DataLoader(data(), 16):
                made.zero_grad()
                value = loss(model, batch)
                value.backward()
                made.step()
                if epoch >= SAVED:
                    self.losses.append(float(value.detach()))
            if epoch == SAVED - 1:
                held = {
                    "model": model.state_dict(),
                    "optimizer": made.state_dict(),
                    "epoch": epoch,
                }
                torch.save(held, path)
                self.states = states_by_name(model, made)

    def change_weights(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        held = torch.load(self.path, weights_only=True)
        torch.save({**held, "model": change(held["model"])}, self.path)


def states_by_name(model: nn.Module, optimizer: Any) -> dict[str, dict[str, Any]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: {k: v.clone() for k, v in state.items() if v is not None}
        for parameter, state in optimizer.state.items()
    }


def continued(path: Path, of: hotlap.Task) -> tuple[Any, list[float], str]:
    """Return the states by name where the file is, the losses after that, and the notice."""
    lines: list[str] = []
    built = build(of, hotlap.Plan({}), device="cpu")
    position = continue_run(built, read_run(path), lines.append)
    states = states_by_name(built.model, built.optimizer)
    losses = [float(step.loss) for step in steps_of(built, position)]
    return states, losses, next(line for line in lines if line.startswith("optimizer:"))


def is_same(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].keys() == other[name].keys()
        and all(torch.equal(value, other[name][key]) for key, value in one[name].items())
        for name in one
    )


@pytest.mark.parametrize("front", ["", "module.", "_orig_mod."])
@pytest.mark.parametrize("optimizer", [adam, momentum])
def test_layers_of_one_shape_in_another_order_keep_their_own_state(
    optimizer: Any, front: str, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth", optimizer, order=OTHER)
    script.change_weights(lambda weights: {f"{front}{k}": v for k, v in weights.items()})
    states, losses, line = continued(script.path, task(optimizer, order=OWN))
    assert is_same(states, script.states) and losses == script.losses
    assert "6 with state; matched by name, as 'model' has another order than the recipe;" in line
    # The control: the layers have states that differ.
    swapped = {**states, "first.weight": states["second.weight"]}
    assert not is_same(swapped, script.states)


@pytest.mark.parametrize("optimizer", [adam, two_groups, of_some])
@pytest.mark.parametrize("order", [OWN, OTHER])
def test_the_same_order_is_kept(optimizer: Any, order: str, tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth", optimizer, order=order)
    states, losses, line = continued(script.path, task(optimizer, order=order))
    assert is_same(states, script.states) and losses == script.losses
    assert line.endswith("matched by order, which 'model' has too")


@pytest.mark.parametrize("order", [OWN, OTHER])
def test_a_shared_parameter_is_one_under_the_name_of_either_layer(
    order: str, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth", order=order, is_tied=True)
    states, losses, line = continued(script.path, task(order=OWN, is_tied=True))
    if order == OTHER:
        assert "matched by name" in line
        script.states["first.weight"] = script.states.pop("second.weight")
    assert is_same(states, script.states) and losses == script.losses


@pytest.mark.parametrize("optimizer", [two_groups, of_some])
def test_another_order_is_refused_where_the_optimizer_does_not_hold_all_in_one_group(
    optimizer: Any, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth", optimizer, order=OTHER)
    words = r"'model' in '.*' has 'second\.\w+' where the recipe has 'first\.\w+'.* all 6 param"
    with pytest.raises(UsageError, match=words):
        hotlap.train(task(optimizer), continue_from=script.path, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_that_were_sorted_by_name_say_nothing_of_the_order(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth", order=OTHER)
    script.change_weights(lambda weights: dict(sorted(weights.items())))
    with pytest.raises(
        UsageError, match=r"'first\.bias' where .* names in the file are sorted, so the order"
    ):
        continued(script.path, task(order=OWN))


def test_groups_that_were_made_by_hand_are_matched_by_order_and_that_is_told(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path / "old.pth", by_hand)
    states, losses, line = continued(script.path, task(by_hand))
    assert is_same(states, script.states) and losses == script.losses
    assert "matched by order alone, which could not be compared" in line


def test_names_in_the_optimizers_state_decide_before_those_of_the_weights(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth", with_names)
    script.change_weights(lambda weights: dict(sorted(weights.items())))
    states, _, line = continued(script.path, task(with_names))
    assert is_same(states, script.states)
    assert line.endswith("matched by order, and the names in the file agree")


def test_an_optimizer_that_keeps_no_state_needs_no_order(tmp_path: Path) -> None:
    script = Script(tmp_path / "old.pth", plain_sgd, order=OTHER)
    script.change_weights(lambda weights: dict(sorted(weights.items())))
    assert continued(script.path, task(plain_sgd))[1] == script.losses


@pytest.mark.parametrize("optimizer", [adam, with_names])
def test_a_recipe_that_compiles_its_model_takes_the_states_under_its_own_names(
    optimizer: Any, tmp_path: Path
) -> None:
    script = Script(tmp_path / "old.pth", optimizer)
    script.change_weights(lambda weights: {f"_orig_mod.{k}": v for k, v in weights.items()})
    compiled = replace(task(optimizer), model=lambda: torch.compile(Net(), backend="eager"))
    built = build(compiled, hotlap.Plan({}), device="cpu")
    continue_run(built, read_run(script.path), lambda line: None)
    states = states_by_name(built.model, built.optimizer)
    plain = {name.removeprefix("_orig_mod."): state for name, state in states.items()}
    assert len(plain) == 6 and all(name not in plain for name in states)
    assert is_same(plain, script.states)
