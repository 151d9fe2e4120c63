"""Which of a run's DataLoaders are trained on, as far as what is heard tells."""

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from hotlap.trace.facts import loader_facts
from hotlap.trace.loaders import Loaders, WatchedLoader


def make_loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2)


def read(
    loaders: Loaders, loader: DataLoader[tuple[torch.Tensor, ...]], count: int = 4
) -> WatchedLoader:
    """Begin a pass after no steps, and read some batches of it."""
    iterator = iter(loader)
    loaders.begin(loader, iterator, 0)
    for _ in range(count):
        next(iterator)
        loaders.read(iterator)
    known = loaders.find(iterator)
    assert known is not None
    return known


def test_a_loader_of_which_all_is_evaluated_is_not_trained_on() -> None:
    loaders, loader = Loaders(), make_loader()
    known = read(loaders, loader)
    assert known.is_trained_on is None
    loaders.evaluate()
    assert known.is_trained_on is False
    # The script draws what it trains on; nothing more is read between its steps.
    for _ in range(3):
        loaders.train()
    assert not known.training and loaders.epochs() is None
    # Then it trains on that loader too.
    assert read(loaders, loader, 1) is known
    loaders.train()
    assert known.training and loaders.epochs() == 1


@pytest.mark.parametrize(("evaluates_first", "is_trained_on"), [(True, None), (False, True)])
def test_of_what_is_read_before_the_first_step_all_may_be_evaluated(
    evaluates_first: bool, is_trained_on: bool | None
) -> None:
    loaders, loader = Loaders(), make_loader()
    known = read(loaders, loader)
    for _ in range(2):
        loaders.train(evaluates_first=evaluates_first)
        assert known.is_trained_on is is_trained_on
    # An evaluation on the data that are trained on next is another pass.
    read(loaders, loader, 1)
    loaders.train(evaluates_first=evaluates_first)
    assert known.training


def test_a_batch_may_be_evaluated_before_it_is_trained_on() -> None:
    loaders = Loaders()
    known = read(loaders, make_loader(), 1)
    loaders.evaluate()
    loaders.train()
    assert known.training


def test_batches_of_several_loaders_may_make_one_step() -> None:
    loaders = Loaders()
    first, second = make_loader(), make_loader()
    one, other = read(loaders, first, 1), read(loaders, second, 1)
    assert one is not other
    loaders.train()
    assert other.training and one.feeds_steps


@pytest.mark.parametrize("seed", [3, None])
@pytest.mark.parametrize("own", [True, False])
def test_passes_that_are_drawn_from_the_same_state_are_known(own: bool, seed: int | None) -> None:
    data = TensorDataset(torch.arange(8.0))
    generator = torch.Generator() if own else None
    loaders, loader = Loaders(), DataLoader(data, shuffle=True, generator=generator)
    state = torch.get_rng_state()
    try:
        for steps in (0, 8, 16):
            if seed is not None:
                (generator or torch).manual_seed(seed)
            iterator = iter(loader)
            loaders.begin(loader, iterator, steps, 1)
            assert len(list(iterator)) == 8
    finally:
        torch.set_rng_state(state)
    (known,) = loaders.all
    assert len(set(loader_facts(known, 24).draws)) == (3 if seed is None else 1)
    assert {made for _, made in loader_facts(known, 24).draws} == {1}


def test_a_loader_in_order_draws_nothing() -> None:
    known = read(Loaders(), make_loader())
    assert loader_facts(known, 1).draws == ()


class Unmade(DistributedSampler[int]):
    """As libraries derive theirs: nothing is made that the class has."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))

    def __len__(self) -> int:
        return self.count


def test_a_sampler_that_makes_no_attributes_of_its_class_is_no_error() -> None:
    data = TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, batch_size=2, sampler=Unmade(8))
    known = read(Loaders(), loader)
    assert known.orders == [None]


@pytest.mark.parametrize(("count", "feeds"), [(3, False), (1, True)])
def test_an_evaluation_that_nothing_is_heard_of_is_no_wait_of_the_loop(
    count: int, feeds: bool
) -> None:
    loaders, training, other = Loaders(), make_loader(), make_loader()
    iterator = iter(training)
    loaders.begin(training, iterator, 0)
    loaders.read(iterator)
    loaders.train()
    # Begun after some steps: as an evaluation by a copy of the model, or by `zip`.
    theirs = iter(other)
    loaders.begin(other, theirs, 5)
    for _ in range(count):
        loaders.read(theirs)
    loaders.read(iterator)
    loaders.train()
    known = loaders.find(theirs)
    assert known is not None and known.feeds_steps is feeds
