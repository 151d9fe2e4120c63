"""Techniques are switched in the process that trains; what cannot be switched is said."""

import gc
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hotlap.attach import seams
from hotlap.attach.live import LiveTechniques
from hotlap.trace.denormals import count_denormals

FUSED = {"optimizer": {"implementation": "fused"}}


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: list[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure


@pytest.fixture
def optimizers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    known: list[Any] = []
    monkeypatch.setattr(seams, "known_optimizers", lambda: list(known))
    yield known


def test_techniques_of_the_process_are_switched_one_after_another() -> None:
    threads = torch.get_num_threads()
    counts = [{"threads": {"count": threads + number}} for number in (1, 2)]
    live = LiveTechniques([*counts, {"garbage_collector": {}}])
    live.prepare()
    assert live.failures() == {} and torch.get_num_threads() == threads and gc.isenabled()
    try:
        live.use([0, 2])
        assert torch.get_num_threads() == threads + 1 and not gc.isenabled()
        live.use([1])
        assert torch.get_num_threads() == threads + 2 and gc.isenabled()
    finally:
        live.use([])
    assert torch.get_num_threads() == threads and gc.isenabled()


def test_an_optimizer_takes_its_steps_as_it_is_switched() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    live = LiveTechniques([FUSED, {"optimizer": {"implementation": "foreach"}}])
    live.prepare()
    seen: list[tuple[Any, Any]] = []
    for wanted in ([], [0], [1], []):
        live.use(wanted)
        weight.grad = torch.ones(3)
        live.step_begins(optimizer)
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(_chosen(o)))
        optimizer.step()
        live.step_ends()
        optimizer._optimizer_step_pre_hooks.popitem()
    assert live.failures() == {}
    assert seen == [(None, None), (False, True), (True, False), (None, None)]


def _chosen(optimizer: Any) -> tuple[Any, Any]:
    (group,) = optimizer.param_groups
    return group["foreach"], group["fused"]


def test_a_technique_that_cannot_be_switched_leaves_the_others() -> None:
    own = Own([torch.ones(3, requires_grad=True)])
    live = LiveTechniques(
        [FUSED, {"threads": {"count": torch.get_num_threads()}}, {"resident": {}}]
    )
    live.prepare()
    live.step_begins(own)
    failed = live.failures()
    assert list(failed) == [0, 2] and "Own" in failed[0] and "no feed" in failed[2]


def test_samples_are_served_from_memory_only_while_that_is_on() -> None:
    loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=4)
    live = LiveTechniques([{"resident": {}}])

    def epoch(wanted: Sequence[int]) -> list[Any]:
        live.use(wanted)
        live.iterator_wanted(loader)
        iterator = iter(loader)
        live.iterator_made(loader, iterator)
        return [batch[0].tolist() for batch in iterator]

    def served() -> int:
        ((_, _, target),) = live._parts[0].targets()
        return target.notes["resident"].served

    plain = epoch([])
    assert live.failures() == {} and served() == 0
    assert epoch([0]) == plain and served() == 16
    assert epoch([]) == plain and served() == 16


def test_what_acts_late_is_undone_when_it_is_switched_off(optimizers: list[Any]) -> None:
    weight = torch.ones(4096, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    optimizers.append(optimizer)

    def step(gradient: float) -> None:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()

    step(1.0)
    average = optimizer.state[weight]["exp_avg"]
    average.fill_(1e-39)
    live = LiveTechniques([{"flush_denormal": {}}])
    live.prepare()
    assert live.failures() == {} and count_denormals(optimizers) == 4096
    live.use([0])
    step(0.0)
    assert count_denormals(optimizers) == 0
    live.use([])
    assert count_denormals(optimizers) == 4096 and optimizer.state[weight]["step"] == 2


class Augmented(Dataset[torch.Tensor]):
    """What is computed before the first draw can be kept."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        image = torch.arange(4.0) * index
        image = image.roll(random.randint(0, 3))
        return image + 1


def test_a_dataset_that_draws_is_prepared_for_a_live_race() -> None:
    loader = DataLoader(Augmented(), batch_size=4)
    live = LiveTechniques([{"resident": {}}])

    def epoch(wanted: Sequence[int]) -> list[Any]:
        random.seed(1)
        live.use(wanted)
        live.iterator_wanted(loader)
        iterator = iter(loader)
        live.iterator_made(loader, iterator)
        return [batch.tolist() for batch in iterator]

    plain = epoch([])
    assert live.failures() == {}
    ((_, _, target),) = live._parts[0].targets()
    parts = target.notes["resident_parts"]
    before, computed = parts.served, parts.computed
    # A few are computed again, to see whether they are still the same.
    assert epoch([0]) == plain
    assert parts.served - before >= 32 and parts.computed - computed <= 32
    served = parts.served
    # Off again, only what is looked at before each epoch comes from memory.
    assert epoch([]) == plain and parts.served - served < 32


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_layout_of_weights_and_state_goes_there_and_back(
    optimizers: list[Any], layout: Any
) -> None:
    # Kernels of 1 x 1 and of one channel are contiguous in both layouts.
    layers = (nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, groups=4))
    model = nn.Sequential(*layers).to(memory_format=layout)
    optimizers.append(optimizer := torch.optim.Adam(model.parameters()))
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    live = LiveTechniques([{"channels_last": {}}])
    live.prepare()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    strides = [parameter.stride() for parameter in model.parameters()]
    live.root_found(model)
    weight = model[0].weight
    assert [parameter.stride() for parameter in model.parameters()] == strides
    live.use([0])
    assert [parameter.stride() for parameter in model.parameters()] != strides or layout != (
        torch.contiguous_format
    )
    state = optimizer.state[weight]
    for tensor in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    live.use([])
    for tensor in (weight, weight.grad, state["exp_avg"], state["exp_avg_sq"]):
        assert tensor.is_contiguous(memory_format=layout)
    assert [parameter.stride() for parameter in model.parameters()] == strides
    assert all(value.equal(before[name]) for name, value in model.state_dict().items())


def test_a_model_of_which_only_a_part_can_be_converted_stays_as_it_is(
    optimizers: list[Any],
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3))
    optimizers.append(torch.optim.Adam(model.parameters()))
    strides = [parameter.stride() for parameter in model.parameters()]
    live = LiveTechniques([{"channels_last": {}}])
    live.root_found(model)
    assert list(live.failures()) == [0]
    assert [parameter.stride() for parameter in model.parameters()] == strides
