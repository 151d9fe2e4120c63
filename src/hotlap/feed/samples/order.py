"""The order of samples, a pure function of seed and epoch: which samples make which step."""

from collections.abc import Iterator
from itertools import islice
from typing import TypeVar

import torch

from hotlap.sequences.lengths import Budget

Item = TypeVar("Item")

_DRAWN_AT_ONCE = 1024
_OF_THE_REST = 1
"""Tells the order of what is left in a buffer from the draws before."""


def epoch_order(length: int, *, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """Return the positions of an epoch's samples in their order, int64, shape (length,)."""
    if not shuffle:
        return torch.arange(length, device="cpu")
    # One generator for each epoch: an epoch can be entered without going through those before it.
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    # Named, here and below: a task may have set another default, and positions are the host's.
    return torch.randperm(length, generator=generator, device="cpu")


def epoch_batches(budget: Budget, *, seed: int, epoch: int, shuffle: bool) -> list[torch.Tensor]:
    """Return the positions of each batch of an epoch, int64, shape (samples of the batch,).

    Who meets whom is drawn anew in every epoch, and so is the order of the batches. Without
    `shuffle` ranges follow each other from short to long, each in the order of the data.
    """
    order = epoch_order(len(budget.lengths), seed=seed, epoch=epoch, shuffle=shuffle)
    ranges = torch.from_numpy(budget.range_of)
    by_range = order[torch.argsort(ranges[order], stable=True)]
    batches = by_range.split(budget.sizes)
    drawn = epoch_order(len(batches), seed=derive_seed(seed, 1), epoch=epoch, shuffle=shuffle)
    return [batches[number] for number in drawn.tolist()]


def through_buffer(items: Iterator[Item], size: int, *, seed: int, epoch: int) -> Iterator[Item]:
    """Give every item once, each drawn from the `size` that came next in the stream.

    Where an item goes follows from seed, epoch and the number of items alone. A stream of no more
    than `size` items comes in an order of which all are equally likely.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    held = list(islice(items, size))
    drawn: list[int] = []
    for item in items:
        if not drawn:
            draws = torch.randint(size, (_DRAWN_AT_ONCE,), generator=generator, device="cpu")
            drawn = draws.tolist()
        place = drawn.pop()
        yield held[place]
        held[place] = item
    generator.manual_seed(derive_seed(seed, epoch, _OF_THE_REST))
    for place in torch.randperm(len(held), generator=generator, device="cpu").tolist():
        yield held[place]


def derive_seed(*numbers: int) -> int:
    """Return one seed below 2**63 for several numbers; neighbours give unrelated ones."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        # SplitMix64: Steele, Lea and Flood (2014), doi 10.1145/2714064.2660195.
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        state ^= state >> 31
    return state >> 1
