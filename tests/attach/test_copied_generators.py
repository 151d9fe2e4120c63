"""Generators that workers copy are those that the user's code draws its samples from."""

import random
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from hotlap.attach.learning.workers import Workers


class Data(Dataset[Any]):
    def __init__(self, rng: Any = None) -> None:
        self.rng: Any = random.Random(0) if rng is None else rng
        self.seed = 3

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return index + self.rng.random()


class Helped(Data):
    def __getitem__(self, index: int) -> Any:
        return [self._draw() for _ in range(index)]

    def _draw(self) -> float:
        return self.rng.random()


class Several(Data):
    def __init__(self) -> None:
        super().__init__([numpy.random.default_rng(0)])

    def __getitem__(self, index: int) -> Any:
        return self.rng[0].random()


class Split(Data):
    """Draws while it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.order = [self.rng.random() for _ in range(8)]

    def __getitem__(self, index: int) -> Any:
        return self.order[index]


class Seeded(Data):
    def __getitem__(self, index: int) -> Any:
        self.rng.seed(self.seed + index)
        return self.rng.random()


class Renewed(Data):
    def __getitem__(self, index: int) -> Any:
        self.rng = random.Random(index)
        return self.rng.random()


RNG = numpy.random.default_rng(0)


def noise() -> float:
    return RNG.random()


class Global(Data):
    def __getitem__(self, index: int) -> Any:
        return index + noise()


class Given(Data):
    """Calls what it was given."""

    def __init__(self) -> None:
        self.augment = noise

    def __getitem__(self, index: int) -> Any:
        return index + self.augment()


def seed_all(worker: int) -> None:
    numpy.random.seed(0)
    torch.manual_seed(0)


def seed_each(worker: int) -> None:
    numpy.random.seed(worker)


def seed_from_torch(worker: int) -> None:
    numpy.random.seed(torch.initial_seed() % 2**32)


class Stream(IterableDataset[Any]):
    def __init__(self) -> None:
        self.rng = torch.Generator()

    def __iter__(self) -> Any:
        yield torch.rand(2, generator=self.rng)


class OfWorkers(Stream):
    def __iter__(self) -> Any:
        info: Any = get_worker_info()
        yield torch.rand(2, generator=self.rng) + info.id


def generator_of(data: Any, **options: Any) -> str:
    loader = DataLoader(data, **{"num_workers": 2, **options})
    return Workers(loader, "a.py:4").facts().generator


@pytest.mark.parametrize(
    ("data", "name"),
    [
        *[(Data(), "rng"), (Helped(), "rng"), (Several(), "rng.0"), (Stream(), "rng")],
        *[(Global(), "RNG"), (Given(), "RNG")],
    ],
)
def test_a_generator_that_makes_samples_is_copied(data: Any, name: str) -> None:
    assert generator_of(data) == name


@pytest.mark.parametrize(
    "data", [Split(), Seeded(), Renewed(), OfWorkers(), Data(random), Data(numpy.random)]
)
def test_a_generator_that_tells_workers_apart_is_not_copied(data: Any) -> None:
    assert generator_of(data) == ""


def test_a_generator_of_a_library_is_not_the_users() -> None:
    # It may shift it by the number of the worker.
    stream: Any = Stream()
    stream.rng = SimpleNamespace(generator=numpy.random.default_rng(0))
    assert generator_of(stream) == ""


def test_one_worker_draws_the_same_in_every_epoch_if_it_is_started_again() -> None:
    assert generator_of(Data(), num_workers=1) == "rng"
    assert generator_of(Data(), num_workers=1, persistent_workers=True) == ""
    # Batches are put together in the worker.
    data = torch.utils.data.TensorDataset(torch.zeros(8))
    assert generator_of(data, collate_fn=lambda samples: noise()) == "RNG"


def is_seeded_alike(data: Any, init: Any) -> bool:
    loader = DataLoader(data, num_workers=2, worker_init_fn=init)
    return Workers(loader, "a.py:4").facts().is_seeded_alike


def test_workers_that_are_given_one_seed_draw_the_same() -> None:
    assert is_seeded_alike(Global(), seed_all)
    assert is_seeded_alike(Global(), lambda _: random.seed(3))
    seed = 3
    for init in (seed_each, seed_from_torch, lambda worker: random.seed(seed + worker), print):
        assert not is_seeded_alike(Global(), init)
    # Nothing is drawn.
    assert not is_seeded_alike(Split(), seed_all)
