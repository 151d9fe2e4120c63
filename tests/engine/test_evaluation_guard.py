"""A look at the model changes nothing: random numbers of devices, buffers and their versions."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hotlap.engine import frozen_parameters
from hotlap.engine.evaluation_guard import evaluation_guard, evaluation_mode, kept_buffers
from hotlap.engine.state.random_states import capture_random_states, load_random_states
from hotlap.engine.step.transaction import Transaction
from hotlap.rng import rng_states, set_rng_states


class Generators:
    """Random states of two devices, as `torch.cuda` tells and takes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states = [torch.tensor([number], dtype=torch.uint8) for number in (3, 5)]
        for name, stand_in in {
            "is_initialized": lambda: True,
            "is_available": lambda: True,
            "device_count": lambda: len(self.states),
            "get_rng_state_all": lambda: [state.clone() for state in self.states],
            "set_rng_state_all": self._set_all,
            "set_rng_state": self._set,
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def _set_all(self, states: list[torch.Tensor]) -> None:
        for number, state in enumerate(states):
            self._set(state, number)

    def _set(self, state: torch.Tensor, number: int) -> None:
        self.states[number] = state.clone()

    def draw(self) -> None:
        for state in self.states:
            state.add_(1)

    def values(self) -> list[int]:
        return [int(state) for state in self.states]


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> Generators:
    return Generators(monkeypatch)


def test_what_evaluation_draws_on_a_device_is_put_back(generators: Generators) -> None:
    with evaluation_guard(nn.Linear(1, 1)):
        generators.draw()
        assert generators.values() == [4, 6]
    assert generators.values() == [3, 5]


def test_a_checkpoint_brings_back_the_devices_that_are_there(generators: Generators) -> None:
    tensors, others = capture_random_states()
    generators.draw()
    checkpoint: Any = SimpleNamespace(tensors={"random": tensors}, state={"random": others})
    load_random_states(checkpoint)
    assert generators.values() == [3, 5]
    del generators.states[1]
    generators.draw()
    load_random_states(checkpoint)
    assert generators.values() == [3]


def test_a_cpu_run_begins_no_cuda_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tensors, _ = capture_random_states()
    assert set(tensors) == {"torch", "numpy"}


def test_a_scripts_step_is_repeated_under_its_devices_random_states(
    generators: Generators,
) -> None:
    states = rng_states()
    generators.draw()
    set_rng_states(states)
    assert generators.values() == [3, 5]


class OtherGenerators(Generators):
    """The same of an accelerator that is not CUDA, and of which torch tells what it tells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        numbers = (3, 5) if kind == "xpu" else (3,)
        self.states = [torch.tensor([number], dtype=torch.uint8) for number in numbers]
        module = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: len(self.states),
            get_rng_state=lambda: self.states[0].clone(),
            set_rng_state=lambda state, device: self._set(state, torch.device(device).index),
        )
        if kind == "xpu":
            module.is_initialized = lambda: True
            module.get_rng_state_all = lambda: [state.clone() for state in self.states]
        monkeypatch.setattr(torch, kind, module)


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_the_generators_of_other_accelerators_are_kept_as_well(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generators = OtherGenerators(monkeypatch, kind)
    before = generators.values()
    with evaluation_guard(nn.Linear(1, 1)):
        generators.draw()
    assert generators.values() == before
    tensors, others = capture_random_states()
    states = rng_states()
    step: Any = SimpleNamespace(
        kept_buffers=set, roll_back=list, update=SimpleNamespace(has_begun=False)
    )
    transaction = Transaction(nn.Linear(1, 1), step, has_cuda=False)
    transaction.keep()
    checkpoint: Any = SimpleNamespace(tensors={"random": tensors}, state={"random": others})
    for put_back in (
        lambda: load_random_states(checkpoint),
        lambda: set_rng_states(states),
        transaction.put_back,
    ):
        generators.draw()
        assert generators.values() != before
        put_back()
        assert generators.values() == before
    # A machine that has fewer of them.
    generators.states.pop()
    load_random_states(checkpoint)
    assert generators.values() == before[:-1]


def table(values: torch.Tensor) -> nn.Module:
    made = nn.Linear(1, 1)
    made.register_buffer("table", values)
    return made


def test_buffers_that_nobody_wrote_to_keep_their_version() -> None:
    model = table(torch.tensor([1.0, float("-inf")]))
    before = model.table
    version = before._version
    with evaluation_guard(model):
        model(torch.ones(1, 1))
        # Others may take its place for a while.
        model.table = torch.zeros(2)
    assert model.table is before and before._version == version


@pytest.mark.parametrize(
    "write", [lambda t: t.add_(1), lambda t: t.data.add_(1), lambda t: t.fill_(float("nan"))]
)
@pytest.mark.parametrize("guard", [evaluation_guard, kept_buffers])
def test_whatever_was_written_to_a_buffer_is_put_back(
    write: Callable[[torch.Tensor], Any], guard: Any
) -> None:
    model = table(torch.tensor([1.0, 2.0]))
    with guard(model):
        write(model.table)
        assert not torch.equal(model.table, torch.tensor([1.0, 2.0]))
    assert torch.equal(model.table, torch.tensor([1.0, 2.0]))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_buffers_of_other_layouts_are_put_back(layout: torch.layout) -> None:
    model = table(torch.eye(2).to_sparse(layout=layout))
    version = model.table._version
    with evaluation_guard(model):
        pass
    assert model.table._version == version
    with evaluation_guard(model):
        model.table.mul_(3)
        assert float(model.table.to_dense().sum()) == 6
    assert torch.equal(model.table.to_dense(), torch.eye(2))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.uint16, torch.bfloat16, torch.float8_e5m2, torch.cfloat]
)
def test_buffers_of_all_formats_are_compared(dtype: torch.dtype) -> None:
    model = table(torch.ones(3).to(dtype))
    version = model.table._version
    with evaluation_guard(model):
        pass
    assert model.table._version == version


def test_a_buffer_of_inference_mode_is_left_as_it_is() -> None:
    with torch.inference_mode():
        model = table(torch.ones(2))
    with evaluation_guard(model):
        pass
    assert torch.equal(model.table, torch.ones(2))


class Limited(nn.Module):
    """Has a `max_norm` for a use of its own, and a weight only if it is given one."""

    def __init__(self, weight: Any = None) -> None:
        super().__init__()
        self.max_norm = 1.0
        if weight is not None:
            self.weight = weight


@pytest.mark.parametrize("weight", [None, 0.5])
def test_a_module_with_a_max_norm_need_not_be_an_embedding(weight: Any) -> None:
    with evaluation_guard(nn.Sequential(Limited(weight), nn.Linear(1, 1))):
        pass


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_what_an_embeddings_look_up_writes_to_its_weights_is_put_back(kind: Any) -> None:
    model = kind(3, 2, max_norm=0.1)
    nn.init.ones_(model.weight)
    before = model.weight.detach().clone()
    with evaluation_guard(model):
        model(torch.zeros(1, 1, dtype=torch.int64))
        assert not torch.equal(model.weight, before)
    assert torch.equal(model.weight, before)
    own = Limited(nn.Parameter(torch.ones(1)))
    with evaluation_guard(own), torch.no_grad():
        own.weight.mul_(2)
    assert own.weight.tolist() == [1]


class Followed(nn.Module):
    """Has a frozen layer that follows the trained one in every forward, in one of two ways.

    Args:
        by_data: without a new version.
        size: of the trained layer.
    """

    def __init__(self, by_data: bool, size: int = 8) -> None:
        super().__init__()
        self.trained, self.follower = nn.Linear(size, size), nn.Linear(8, 8)
        self.follower.requires_grad_(False)
        self.by_data = by_data

    def forward(self) -> None:
        weight = self.follower.weight
        (weight.data if self.by_data else weight).mul_(0.5)


@pytest.mark.parametrize("by_data", [False, True])
def test_parameters_that_follow_in_every_forward_are_put_back(by_data: bool) -> None:
    model = Followed(by_data)
    weight, bias = model.follower.weight, model.follower.bias
    before, version = weight.detach().clone(), bias._version
    for _ in range(2):
        for guard in (evaluation_guard, evaluation_mode):
            with guard(model):
                model()
                assert not torch.equal(weight, before)
            assert torch.equal(weight, before)
    # No copies are made any more of those that no evaluation changed.
    assert frozen_parameters._changing[model] == {"follower.weight"}
    assert bias._version == version


def test_of_a_large_frozen_model_what_changed_once_is_put_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "hotlap")
    model = Followed(by_data=True, size=2)
    for changes in (True, False, False):
        before = model.follower.weight.detach().clone()
        with evaluation_guard(model):
            model()
        assert torch.equal(model.follower.weight, before) != changes
    (told,) = caplog.messages
    assert "parameter 'follower.weight', which is not trained" in told


def test_a_frozen_parameter_that_is_replaced_is_there_again() -> None:
    model = Followed(by_data=False)
    before = model.follower.weight
    with evaluation_guard(model):
        model.follower.weight = nn.Parameter(torch.zeros(8, 8), requires_grad=False)
    assert model.follower.weight is before
