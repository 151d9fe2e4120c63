"""Modules that no optimizer trains are heard, named and captured."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach.listener import State
from hotlap.attach.roles.networks import Networks
from hotlap.attach.roles.sampling import StepSampler
from hotlap.attach.roles.saves import saved_row


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> tuple[nn.Module, Any]:
    """A model, and the only optimizer that is known."""
    monkeypatch.setattr(State, "optimizers", [])
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    frozen = model[0].bias
    optimizer = torch.optim.SGD([p for p in model.parameters() if p is not frozen], lr=0.1)
    State.optimizers.append(lambda: optimizer)  # pyright: ignore[reportArgumentType]
    return model, optimizer


def test_each_tensor_is_given_once_with_the_name_of_its_module(
    trained: tuple[nn.Module, Any],
) -> None:
    model, _ = trained
    networks, teacher, other = Networks([model]), nn.Linear(4, 3), nn.Linear(2, 2)
    assert networks.note_call(teacher) == "Linear 1" and networks.note_call(teacher) == ""
    assert networks.note_call(other) == "Linear 2"
    # A part of the model that is called by itself has its names already.
    assert networks.note_call(model[1]) == "BatchNorm1d 1"  # pyright: ignore[reportIndexIssue]
    names = [name for name, _ in networks.states()]
    assert "1.0.weight" in names and "1.1.running_mean" in names
    assert [n for n in names if n.startswith("Linear")] == [
        *("Linear 1.weight", "Linear 1.bias", "Linear 2.weight", "Linear 2.bias"),
    ]
    assert not any(name.startswith("BatchNorm1d") for name in names)
    untrained = [name for name, _ in networks.untrained()]
    assert "1.0.bias" in untrained and "1.0.weight" not in untrained
    assert "1.1.running_var" in untrained and "Linear 1.weight" in untrained
    assert [name for name, _ in networks.states(other)] == ["Linear 2.weight", "Linear 2.bias"]


def test_a_module_that_is_gone_is_forgotten_and_its_name_is_not_given_again() -> None:
    networks, kept = Networks([]), nn.Linear(2, 2)
    networks.note_call(nn.Linear(2, 2))
    gc.collect()
    assert networks.note_call(kept) == "Linear 2"
    assert {name for name, _ in networks.states(kept)} == {"Linear 2.weight", "Linear 2.bias"}


def test_a_module_that_is_called_later_in_a_step_is_captured_then(tmp_path: Path) -> None:
    networks, teacher = Networks([nn.Linear(2, 2)]), nn.Linear(2, 2)
    sampler = StepSampler({"samples": [0], "folder": str(tmp_path)})
    sampler.batch(0, torch.ones(2), networks)
    networks.note_call(teacher)
    sampler.keep_states()
    expected = teacher.weight.detach().clone()
    with torch.no_grad():
        teacher.weight.zero_()
    # What is kept is what the step has begun with.
    sampler.keep_states()
    assert torch.equal(sampler._tensors["model.Linear 1.weight"], expected)


def test_a_save_is_compared_with_what_the_model_has(trained: tuple[nn.Module, Any]) -> None:
    model, optimizer = trained
    networks = Networks([model])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    updates, equal, whole = saved_row(state, networks, 7)
    assert (updates, equal) == (7, len(model.state_dict()))
    with torch.no_grad():
        state["model"] = {name: tensor + 7 for name, tensor in model.state_dict().items()}
    _, equal, other = saved_row(state, networks, 7)
    assert equal == 0 and other != whole
    assert saved_row(SimpleNamespace(), networks, 7)[1] == 0
