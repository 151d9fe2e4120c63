"""States that are rare are saved and resumed from, or refused before much is trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hotlap
from hotlap.checkpoint.read import read
from hotlap.errors import CheckpointCorrupt, UsageError
from tests.engine.test_resume import state as state_of
from tests.engine.test_saving import numbers, step_of
from tests.engine.test_validity import in_state

INPUTS = torch.linspace(-1, 1, 48).reshape(16, 3)


def squares(model: Any, batch: Any) -> torch.Tensor:
    return model(batch[0]).abs().square().mean()


def task(**options: Any) -> hotlap.Task:
    given = {
        "model": lambda: nn.Linear(3, 2),
        "loss": squares,
        "data": TensorDataset(INPUTS),
        "optimizer": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        "batch_size": 4,
        "steps": 4,
    }
    return hotlap.Task(**{**given, **options})


def check_resumed(tmp_path: Path, **options: Any) -> None:
    """Compare a run that was resumed with one that was never stopped, to the bit."""
    said: list[str] = []
    hotlap.train(task(**options), run_dir=tmp_path / "whole", notice=said.append)
    for steps in (2, 4):
        run = {"run_dir": tmp_path / "run", "resume": "auto", "notice": said.append}
        hotlap.train(task(**{**options, "steps": steps}), **run)
    assert not [line for line in said if "skipped" in line or "not finite" in line]
    assert [line for line in said if "step-000000000002" in line]
    assert numbers(tmp_path / "run") == [2, 4]
    assert state_of(tmp_path / "run") == state_of(tmp_path / "whole")


def test_squares_of_gradients_may_overflow(tmp_path: Path) -> None:
    def steep(model: Any, batch: Any) -> torch.Tensor:
        return model(batch[0]).mean() * 1e25

    check_resumed(tmp_path, loss=steep)
    kept = read(step_of(tmp_path / "run", 4)).tensors["optimizer"]
    assert bool(torch.isinf(kept["weight/exp_avg_sq"]).any())


class Turned(nn.Module):
    """A layer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
        self.register_buffer("phase", torch.ones(2, dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.to(self.weight.dtype) @ self.weight * self.phase


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "RMSprop", "Rprop", "SGD"])
def test_a_model_of_complex_numbers_is_resumed(name: str, tmp_path: Path) -> None:
    options = {"momentum": 0.9} if name == "SGD" else {}

    def optimizer(model: Any) -> Any:
        return getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)

    check_resumed(tmp_path, model=Turned, optimizer=optimizer)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_an_optimizer_that_takes_only_matrices_is_resumed(tmp_path: Path) -> None:
    def optimizer(model: Any) -> Any:
        return torch.optim.Muon([model.weight], lr=0.01, momentum=0.9)

    check_resumed(tmp_path, optimizer=optimizer)
    beyond = step_of(tmp_path / "run", 4)
    in_state(lambda state: state["optimizer"]["groups"][0].update(lr=-1.0))(beyond)
    with pytest.raises(CheckpointCorrupt, match="negative"):
        hotlap.train(task(optimizer=optimizer, steps=6), resume=str(beyond))


class Together(torch.optim.SGD):
    """Keeps what belongs to no parameter."""

    def step(self, closure: Any = None) -> Any:
        kept = self.state["global"]
        kept["count"] = kept.get("count", 0) + 1
        kept["scale"] = torch.tensor(1.0) / kept["count"]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(kept["scale"])
        return super().step(closure)


def test_state_that_belongs_to_no_parameter_is_resumed(tmp_path: Path) -> None:
    check_resumed(tmp_path, optimizer=lambda model: Together(model.parameters(), lr=0.01))
    path = step_of(tmp_path / "run", 4)
    assert "others" in read(path).state["optimizer"]
    in_state(lambda state: state["optimizer"].update(others=[1]))(path)
    with pytest.raises(CheckpointCorrupt, match="cannot be loaded"):
        given = task(optimizer=lambda model: Together(model.parameters(), lr=0.01), steps=6)
        hotlap.train(given, resume=str(path))


class Factored(torch.optim.SGD):
    """Keeps a list of matrices for each parameter, after as many updates."""

    kept: Any = None

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["factors"] = self.kept
        return done


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([torch.ones(2, 2)], "the optimizer's state holds a Tensor, which a checkpoint cannot"),
        (torch.ones(2, dtype=torch.complex128), "factors' has dtype torch.complex128"),
    ],
)
def test_a_state_that_cannot_be_saved_is_said_after_the_first_update(
    kept: Any, words: str, tmp_path: Path
) -> None:
    taken: list[int] = []

    def counted(model: Any, batch: Any) -> torch.Tensor:
        taken.append(1)
        return squares(model, batch)

    def optimizer(model: Any) -> Any:
        made = Factored(model.parameters(), lr=0.01)
        made.kept = kept
        return made

    with pytest.raises(UsageError, match=words):
        hotlap.train(task(loss=counted, optimizer=optimizer), run_dir=tmp_path)
    assert len(taken) == 1
    # Where nothing is saved, nothing is asked.
    assert hotlap.train(task(optimizer=optimizer)).steps == 4


@pytest.mark.parametrize("buffer", [torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.cdouble)])
def test_a_buffer_that_cannot_be_saved_is_said_before_the_first_step(
    buffer: torch.Tensor, tmp_path: Path
) -> None:
    taken: list[int] = []

    def counted(model: Any, batch: Any) -> torch.Tensor:
        taken.append(1)
        return squares(model, batch)

    def model() -> nn.Module:
        made = nn.Linear(3, 2)
        made.register_buffer("mask", buffer)
        return made

    with pytest.raises(UsageError, match=f"the model's tensor 'mask' has dtype {buffer.dtype}"):
        hotlap.train(task(model=model, loss=counted), run_dir=tmp_path)
    assert not taken and numbers(tmp_path) == []
    # Without a folder it is trained, and evaluated.
    assert hotlap.train(task(model=model, held_out=TensorDataset(INPUTS))).steps == 4


class CountsInGroups(torch.optim.SGD):
    """Keeps a number of its own in each group, from its first step on, as LAMB does."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
        return super().step(closure)


def test_a_number_that_an_optimizer_adds_to_its_groups_is_resumed(tmp_path: Path) -> None:
    check_resumed(tmp_path, optimizer=lambda model: CountsInGroups(model.parameters(), lr=0.01))


def test_an_optimizer_that_is_made_with_a_state_of_former_steps_is_resumed(tmp_path: Path) -> None:
    def optimizer(model: Any) -> torch.optim.Optimizer:
        made = torch.optim.Adam(model.parameters(), lr=0.01)
        for parameter in model.parameters():
            zeros = torch.zeros_like(parameter)
            kept = {"exp_avg": zeros, "exp_avg_sq": zeros.clone(), "step": torch.tensor(1000.0)}
            made.state[parameter] = kept
        return made

    check_resumed(tmp_path, optimizer=optimizer)
