"""Each rank of a machine has a device of its own."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from hotlap.distributed.ranks import ALONE, Ranks
from hotlap.distributed.reduce import Reduce
from hotlap.engine import rank_device
from hotlap.engine.rank_device import name_of_device, own_device
from hotlap.engine.step.choosing import make_step
from hotlap.feed.samples.order import derive_seed
from hotlap.techniques import StepTarget

SECOND = Ranks(3, 4, local_rank=1, local_world=2)


@pytest.mark.parametrize(
    ("ranks", "asked", "visible", "expected"),
    [
        (SECOND, None, 2, "cuda:1"),
        (SECOND, "cuda", 2, "cuda:1"),
        # As Slurm's --gpus-per-task=1 shows them.
        (SECOND, None, 1, "cuda:0"),
        (SECOND, "cpu", 2, "cpu"),
        (ALONE, None, 2, None),
    ],
)
def test_a_rank_takes_the_device_of_its_number_or_the_only_one_it_sees(
    ranks: Ranks,
    asked: str | None,
    visible: int,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_device, "device_of", lambda _: SimpleNamespace(kind="cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    assert name_of_device(asked, ranks) == expected


def test_a_ranks_device_is_the_current_one_while_it_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    current: list[str] = []

    @contextlib.contextmanager
    def device(name: str) -> Iterator[None]:
        current.append(name)
        yield
        current.pop()

    def kind_of(name: str | None) -> SimpleNamespace:
        return SimpleNamespace(kind="cpu" if name == "cpu" else "cuda")

    monkeypatch.setattr(rank_device, "device_of", kind_of)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", device)
    with own_device(None, SECOND) as name:
        assert [name] == current == ["cuda:1"]
    assert current == []
    # One process may have been given another device than the first.
    with own_device("cuda:1", ALONE) as name:
        assert [name] == current == ["cuda:1"]
    # Nobody asks CUDA for anything else.
    for asked, ranks in (("cpu", SECOND), (None, ALONE)):
        with own_device(asked, ranks) as name:
            assert (name, current) == (asked, [])


def test_a_rank_draws_its_own_numbers_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    generators = (torch.Generator(), torch.Generator())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    monkeypatch.setattr(torch.cuda.random, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.random, "current_device", lambda: 0)
    layer = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    target = StepTarget(layer, optimizer, "cuda", reduce=Reduce(SECOND))
    step = make_step(layer, print, optimizer, target=target, reduce=Reduce(SECOND), seed=7)
    ranks = step.ranks
    assert ranks is not None
    state = torch.get_rng_state()
    try:
        ranks.number = 5
        ranks._seed_draws()
    finally:
        torch.set_rng_state(state)
    # Its device is the second one; the first one is current.
    assert generators[1].initial_seed() == derive_seed(7, 5, SECOND.rank)
