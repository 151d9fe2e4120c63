"""Modules that no optimizer trains are heard, named and captured."""

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.attach.listener import State
from hotlap.attach.roles.networks import Networks, names_of
from hotlap.attach.roles.repetition import Repetition
from hotlap.attach.roles.sampling import StepSampler
from hotlap.attach.roles.saves import saved_row
from hotlap.trial.not_read import not_read_in


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


def test_a_module_that_is_made_anew_in_each_step_has_one_name() -> None:
    networks = Networks([])
    for _ in range(3):
        assert networks.note_call(nn.Linear(2, 2)) == "Linear 1"
        gc.collect()
    kept = nn.Linear(2, 2)
    assert networks.note_call(kept) == "Linear 1" and networks.others == [kept]


def test_a_model_whose_optimizer_has_died_is_watched_no_more(
    trained: tuple[nn.Module, Any],
) -> None:
    model, _ = trained
    # Of the fold before, and of one that begins with a frozen part.
    networks = Networks([nn.Linear(2, 2), model])
    places = {name.partition(".")[0] for name, _ in networks.untrained()}
    assert places == {"2"}


class Computing(dict[str, Any]):
    def __getitem__(self, key: str) -> Any:
        raise KeyError(f"{key} has no value yet")


def test_what_cannot_be_read_of_a_save_is_said(trained: tuple[nn.Module, Any]) -> None:
    model, _ = trained
    networks = Networks([model])
    updates, held, _, unread = saved_row({"w": torch.empty(2, device="meta")}, networks, 7)
    assert (updates, held) == (7, 0) and not_read_in([unread])
    # What stands beside it is.
    both = {"config": Computing(a=1), "model": model.state_dict()}
    _, held, _, partly = saved_row(both, networks, 7)
    assert held == 3 and any("UnreadMapping" in kind for kind in not_read_in([partly]))


def test_a_lazy_module_is_one_once_it_has_numbers() -> None:
    networks, lazy = Networks([nn.LazyLinear(2)]), nn.LazyLinear(3)
    assert networks.note_call(lazy) == "" and not list(networks.states())
    lazy(torch.ones(2, 4))
    assert networks.note_call(lazy) == "Linear 1"
    assert len(list(networks.states())) == 2


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


def test_what_is_called_before_a_step_that_draws_itself_is_captured_as_it_was(
    tmp_path: Path,
) -> None:
    statistics = nn.BatchNorm1d(2)
    networks = Networks([nn.Linear(2, 2)])
    sampler = StepSampler({"samples": [3], "folder": str(tmp_path)})
    sampler.mark_step_boundary(3)
    networks.note_call(statistics)
    sampler.other_forward(statistics, networks)
    given = statistics(torch.randn(8, 2)).detach()
    sampler.forward(3, (given,), networks)
    kept = sampler._tensors["model.BatchNorm1d 1.running_mean"]
    assert torch.equal(kept, torch.zeros(2)) and statistics.running_mean.any()  # pyright: ignore[reportOptionalMemberAccess]
    # Of a step that begins with a batch it is the state at that.
    sampler.finish()
    sampler.mark_step_boundary(4)
    assert not sampler._early


def test_a_dtype_of_its_own_is_left_to_a_module_that_is_only_called(tmp_path: Path) -> None:
    model, wide = nn.Linear(2, 2), nn.BatchNorm1d(2, dtype=torch.float64)
    teacher = nn.Linear(2, 2)
    networks = Networks([model])
    networks.note_call(wide)
    networks.note_call(teacher)
    sampler = StepSampler({"samples": [0], "folder": str(tmp_path)})
    sampler.batch(0, torch.ones(2), networks)
    sampler._updates.append({"optimizer": 0, "update": 0})
    sampler.finish()
    repeated = Repetition(sampler.written[0]["file"], [], torch.float64)
    repeated.begin(networks)
    assert {p.dtype for p in (model.weight, teacher.weight, wide.weight)} == {torch.float64}
    repeated.end(networks)
    assert model.weight.dtype == teacher.weight.dtype == torch.float32
    plain = Repetition(sampler.written[0]["file"], [], torch.float32)
    plain.begin(networks)
    assert wide.weight.dtype == torch.float64 and teacher.weight.dtype == torch.float32
    assert plain.cast_beside(torch.ones(2, dtype=torch.float64)).dtype == torch.float64
    plain.end(networks)


def test_a_save_is_compared_with_what_is_trained(trained: tuple[nn.Module, Any]) -> None:
    model, optimizer = trained
    networks = Networks([model])
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    # Three of the four parameters are trained, and buffers are not.
    updates, held, tensors, whole = saved_row(state, networks, 7)
    assert (updates, held) == (7, 3)
    assert saved_row([model], networks, 7)[1] == 3
    swapped = {name[::-1]: tensor for name, tensor in model.state_dict().items()}
    row = saved_row({**state, "model": swapped}, networks, 7)
    assert row[1:3] == [held, tensors] and row[3] != whole
    assert saved_row({**state, "epoch": 4}, networks, 7)[3] != whole
    optimizer.param_groups[0]["foreach"] = True
    fused = {**state, "optimizer": optimizer.state_dict()}
    assert saved_row(fused, networks, 7)[3] == whole
    scaled = {name: tensor + 7 for name, tensor in model.state_dict().items()}
    row = saved_row({**state, "model": scaled}, networks, 7)
    assert row[1] == 0 and row[2] != tensors
    assert saved_row(SimpleNamespace(), networks, 7)[1] == 0


@pytest.mark.parametrize("layers", [1, 12])
def test_two_models_of_one_optimizer_have_names_of_their_own(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [nn.Sequential(*[nn.Linear(2, 2) for _ in range(layers)]) for _ in range(2)]
    parameters = [parameter for root in roots for parameter in root.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    monkeypatch.setattr(State, "optimizers", [lambda: optimizer])
    (names,) = names_of(roots)
    assert len(set(names.values())) == len(parameters) == 4 * layers
    assert names["0.0"] == "1.0.weight" and names[f"0.{2 * layers}"] == "2.0.weight"
    # A name within one model may be that of another's with its number before it.
    deep = [
        nn.Sequential(nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Sequential(*roots[0])),
    ]
    held = torch.optim.SGD([each for root in deep for each in root.parameters()], lr=0.1)
    monkeypatch.setattr(State, "optimizers", [lambda: held])
    (names,) = names_of(deep)
    assert len(set(names.values())) == len(names)
    # What is called alike by nobody else keeps its name.
    monkeypatch.setattr(State, "optimizers", [lambda: optimizer])
    (names,) = names_of(roots[:1])
    assert names["0.0"] == "0.weight"
