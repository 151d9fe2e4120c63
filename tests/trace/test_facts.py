"""What is known of loaders whose data sets do not say how long they are."""

from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, TensorDataset

from hotlap.trace.facts import count_steps_per_epoch, loader_facts
from hotlap.trace.loaders import WatchedLoader


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(8.0))


class Unsized(Stream):
    def __len__(self) -> int:
        raise NotImplementedError


class Broken(Stream):
    def __len__(self) -> int:
        return self.length  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("data", "length"),
    [
        (Stream(), None),
        (Unsized(), None),
        (Broken(), None),
        (ChainDataset([Stream(), Stream()]), None),
        (TensorDataset(torch.arange(8.0)), 8),
    ],
)
def test_a_data_set_may_have_no_length(data: Any, length: int | None) -> None:
    loader = DataLoader(data, batch_size=2)
    known = WatchedLoader(loader)
    known.begin(0, loader)
    known.batches = 2
    facts = loader_facts(known, 2)
    batches = None if length is None else length // 2
    assert (facts.length, facts.batches) == (length, batches)
    assert count_steps_per_epoch([known], 2) == batches
    assert known.batches_left() == (None if batches is None else batches - 2)


def watched(*passes: tuple[int, int, bool]) -> WatchedLoader:
    """Return a loader that was begun after so many steps, gave so many batches, and trained."""
    loader = DataLoader(TensorDataset(torch.arange(200.0)), batch_size=2)
    known = WatchedLoader(loader)
    for steps, batches, trains in passes:
        known.begin(steps, loader)
        known.where = known.where or f"pass {steps} {batches}"
        known.batches += batches
        known.training = known.training or trains
    return known


@pytest.mark.parametrize(
    ("passes", "steps", "starts"),
    [
        # A look at the first batch, and one at all of them.
        ([(0, 1, False), (0, 50, True)], 50, [0]),
        ([(0, 100, False), (0, 50, True)], 50, [0]),
        # An evaluation on the training data after each epoch.
        ([(0, 100, True), (100, 100, True), (100, 100, True), (200, 7, True)], 200, [0, 100, 200]),
        ([(0, 100, True), (100, 100, True), (100, 10, True)], 110, [0, 100]),
        # The negative control: an epoch, and another one.
        ([(0, 100, True), (100, 10, True)], 110, [0, 100]),
    ],
)
def test_a_pass_in_which_no_step_is_taken_is_no_epoch(
    passes: list[tuple[int, int, bool]], steps: int, starts: list[int]
) -> None:
    known = watched(*passes)
    assert known.starts == starts and len(known.orders) == len(starts)
    assert count_steps_per_epoch([known], steps) == 100
    assert known.where == ("pass 0 50" if steps == 50 else "pass 0 100")


@pytest.mark.parametrize(
    ("read", "starts", "left"),
    [
        # A batch of the first pass, while the second evaluates; a batch of each, as in `zip`.
        ({0}, [0], 98),
        ({0, 1}, [0, 1], 99),
        ({1}, [0, 1], 99),
        # Nothing is known of it, or it was evaluated.
        (set(), [0, 1], 99),
    ],
)
def test_a_pass_after_which_an_earlier_one_goes_on_is_no_epoch(
    read: set[int], starts: list[int], left: int
) -> None:
    known = watched((0, 1, True), (1, 1, True))
    known.batches += read == {0}
    known.read = {*read}
    known.train()
    assert known.starts == starts and len(known.orders) == len(starts)
    assert known.batches_left() == left
    # What was trained on stays an epoch, whatever goes on.
    known.read = {0}
    known.train()
    assert known.starts == (starts if 1 in read else [0])


def test_what_is_evaluated_is_not_trained_on() -> None:
    known = watched((0, 1, True), (1, 100, True))
    known.read = {0, 1}
    known.evaluate()
    assert known.read == {0}
