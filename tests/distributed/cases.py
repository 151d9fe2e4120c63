"""Runs that one process and several ranks must make alike."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import IterableDataset, TensorDataset

import hotlap
from hotlap.plan import Plan
from tests.engine import lattice

COUNT, BATCH = 52, 16
"""Samples, and those of a step: the last step has 4, of which a second rank gets none."""


class OnGrid(torch.optim.SGD):
    """Keeps every weight a multiple of 1/16, so that all arithmetic stays exact."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.mul_(16).round_().div_(16).clamp_(-1, 1)


class Numbers(IterableDataset[Any]):
    """The samples of the exact task, one after the other."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        inputs, targets = lattice.data(self.count).tensors
        yield from zip(inputs, targets, strict=True)


class Forked(nn.Module):
    """Uses its second layer only where a batch's first input is above zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = lattice.model(), lattice.model()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.first(inputs)
        return found + self.other(inputs) if inputs[0, 0] > 0 else found


class UsedTwice(nn.Module):
    """Goes backward through one layer twice, by graphs within the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared = lattice.model(), nn.Linear(2, 2)
        with torch.no_grad():
            self.shared.weight.copy_(torch.tensor([[0.5, -0.25], [0.25, 0.5]]))
            self.shared.bias.zero_()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.first(inputs)
        for _ in range(2):
            found = checkpoint(self.shared, found, use_reentrant=True)
        return found


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 2))


def adam(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def short_of_memory(rank: int) -> Callable[[Any, Any], Any]:
    """Return a loss for which rank 1 runs out of memory now and then."""
    draws = random.Random(3)

    def loss(model: Any, batch: Any) -> Any:
        value = lattice.sum_and_count(model, batch)
        if rank == 1 and torch.is_grad_enabled() and len(batch[0]) > 1 and draws.random() < 0.1:
            raise torch.OutOfMemoryError("no memory on this rank")
        return value

    return loss


def not_finite(rank: int, world: int) -> Callable[[Any, Any], Any]:
    """Return a loss that is NaN at one step, on the last rank only."""
    calls = iter(range(10**6))

    def loss(model: Any, batch: Any) -> Any:
        value = lattice.squares(model, batch).sum()
        if torch.is_grad_enabled() and next(calls) == 2 and rank == world - 1:
            value = value * float("nan")
        return value, len(batch[0])

    return loss


def exact(**options: Any) -> hotlap.Task:
    given: dict[str, Any] = {
        "model": lattice.model,
        "data": lattice.data(COUNT),
        "loss": lattice.mean,
        "optimizer": lambda m: OnGrid(m.parameters(), lr=1 / 64),
        "batch_size": BATCH,
        "epochs": 3,
        "held_out": lattice.data(22),
    }
    return hotlap.Task(**{**given, **options})


def tasks(rank: int, world: int, parts: int = 2) -> dict[str, tuple[hotlap.Task, Plan]]:
    """Return the runs by name, for one of `world` ranks.

    For `world` 1, they are runs of one process that does what `parts` ranks do.
    """
    # Of micro-batches, what one process takes in turn several ranks take at once.
    split = {"batch_size": BATCH // parts, "accumulate": parts} if world == 1 else {}
    ordinary = {"model": network, "optimizer": adam, **split}
    small = TensorDataset(*(each[:3] for each in lattice.data(8).tensors))
    plain = Plan()
    return {
        "mean": (exact(), plain),
        "sum and count": (exact(loss=lattice.sum_and_count), plain),
        "ragged counts": (exact(loss=lattice.tokens), plain),
        "accumulated": (exact(batch_size=4, accumulate=4, loss=lattice.tokens), plain),
        "stream": (exact(data=Numbers(), loss=lattice.sum_and_count), plain),
        "a layer that some ranks use": (
            exact(model=Forked, loss=lattice.sum_and_count, held_out=None, **split),
            plain,
        ),
        "ordinary, a layer used twice": (
            # Its graphs cannot be asked for gradients alone, as the check of a mean does.
            exact(model=UsedTwice, loss=lattice.sum_and_count, held_out=None, **split),
            plain,
        ),
        "out of memory on one rank": (exact(loss=short_of_memory(rank)), plain),
        "not finite on one rank": (exact(loss=not_finite(rank, world), epochs=2), plain),
        "fewer samples than a step": (exact(data=small), plain),
        "ordinary": (exact(**ordinary), plain),
        "ordinary, clipped": (exact(**ordinary, clip_norm=0.5), plain),
        "resident, fused": (
            exact(**ordinary, clip_norm=0.5),
            Plan({"resident": {}, "optimizer": {"implementation": "fused"}}),
        ),
    }
