"""Fused updates of a small model run as several launches beside each other, with the same bits."""

import contextlib
from typing import Any

import pytest
import torch

from hotlap.engine.step import split_updates
from hotlap.engine.step.split_updates import FORKS, SplitUpdates, split
from tests.fake_device import FakeCuda

OPTIMIZERS = {
    "adam": lambda given: torch.optim.Adam(given, lr=0.01, fused=True),
    "adamw, amsgrad": lambda given: torch.optim.AdamW(given, lr=0.01, amsgrad=True, fused=True),
    "sgd": lambda given: torch.optim.SGD(given, lr=0.01, fused=True),
    "momentum": lambda given: torch.optim.SGD(given, lr=0.01, momentum=0.9, fused=True),
    "adagrad": lambda given: torch.optim.Adagrad(given, lr=0.01, fused=True),
}
SHAPES = ((300, 700), (700,), (200, 700), ())


def stepped(make: Any, around: Any, device: str = "cpu") -> list[torch.Tensor]:
    torch.manual_seed(0)
    parameters = [torch.randn(shape, device=device, requires_grad=True) for shape in SHAPES]
    optimizer = make(parameters)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        with around():
            optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values()]
    tensors = [each for each in state if isinstance(each, torch.Tensor)]
    return [each.detach().clone() for each in (*parameters, *tensors)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_in_pieces_has_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[int] = []
    plain = split_updates.split

    def noted(lists: Any) -> Any:
        found = plain(lists)
        launches.append(len(found))
        return found

    monkeypatch.setattr(split_updates, "split", noted)
    device = FakeCuda()
    streams = [device.new_stream() for _ in range(FORKS)]
    mine = stepped(OPTIMIZERS[name], lambda: SplitUpdates(device, streams))
    theirs = stepped(OPTIMIZERS[name], contextlib.nullcontext)
    assert launches == [6, 6, 6]
    for left, right in zip(mine, theirs, strict=True):
        assert torch.equal(left, right)


def test_each_element_is_in_one_piece_and_no_launch_has_too_many() -> None:
    given = [torch.arange(350_001.0), torch.arange(5.0)]
    steps = [torch.tensor(1.0), torch.tensor(2.0)]
    launches = split([given, [], steps])
    assert all(len(parts) == len(counters) <= 36 for parts, _, counters in launches)
    assert all(nothing == [] for _, nothing, _ in launches)
    parts = [part for parts, _, _ in launches for part in parts]
    assert torch.equal(torch.cat(parts), torch.cat(given))
    counters = [float(each) for _, _, counters in launches for each in counters]
    assert counters == [1.0] * (len(counters) - 1) + [2.0]
    # Written to, the pieces are the tensor.
    parts[1].zero_()
    assert float(given[0].min()) == 0 and int((given[0] == 0).sum()) == len(parts[1]) + 1


@pytest.mark.parametrize(
    "given",
    [
        [torch.zeros(1000)],
        # As many blocks as there are multiprocessors: to cut it gains nothing.
        [torch.empty(20_000_000, device="meta")],
        [torch.zeros(700, 300).t()],
        [torch.zeros(10_000) for _ in range(300)],
        [],
    ],
    ids=["small", "large", "strided", "many", "none"],
)
def test_what_gains_nothing_is_left_as_it_is(given: list[torch.Tensor]) -> None:
    lists = [given, given]
    assert split(lists) == [lists]


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_on_a_device_an_update_in_pieces_has_the_same_bits(name: str) -> None:
    from hotlap.device.accelerator import Cuda

    if name == "adagrad":
        pytest.skip("torch has no fused Adagrad for CUDA")
    device = Cuda("cuda")
    streams = [device.new_stream() for _ in range(FORKS)]
    mine = stepped(OPTIMIZERS[name], lambda: SplitUpdates(device, streams), "cuda")
    theirs = stepped(OPTIMIZERS[name], contextlib.nullcontext, "cuda")
    for left, right in zip(mine, theirs, strict=True):
        assert torch.equal(left, right)
