"""The random states of a DataLoader's workers, drawn from in the process that they belong to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# Loaded by torch in every worker: a generator that only the first sample loads would not be seeded.
import numpy.random
import torch
from torch.utils.data._utils import worker as _worker

from hotlap import rng

States = tuple[Any, Any, torch.Tensor]
"""Of Python's, numpy's and torch's global generator, see `rng.global_random_states`."""


class WorkerStreams:
    """What each worker would draw next.

    Args:
        states: one for each worker.
    """

    def __init__(self, states: Sequence[States]) -> None:
        self.states = list(states)

    @classmethod
    def seeded(cls, base_seed: int, workers: int) -> "WorkerStreams":
        """Return the streams of workers that have just started.

        Args:
            base_seed: that of the DataLoader's iterator.
            workers: how many there are.
        """
        return cls([seeded_state(base_seed, worker) for worker in range(workers)])

    @contextmanager
    def of(self, worker: int) -> Iterator[None]:
        """Draw from the stream of that worker for a while."""
        outer = rng.global_random_states()
        rng.restore(self.states[worker])
        try:
            yield
        finally:
            self.states[worker] = rng.global_random_states()
            rng.restore(outer)


def seeded_state(base_seed: int, worker: int) -> States:
    """Return the random states of a worker that has just started."""
    with rng.other_random_states():
        seed_as_worker(base_seed, worker)
        return rng.global_random_states()


def seed_as_worker(base_seed: int, worker: int) -> None:
    """Seed this process's generators as torch seeds those of a worker that starts.

    Args:
        base_seed: that of the DataLoader's iterator.
        worker: its number, from 0.
    """
    rng.reseed(base_seed + worker)
    numpy.random.seed(_worker._generate_state(base_seed, worker))


def are_equal(one: States, other: States) -> bool:
    """Return whether both draw the same numbers."""
    with rng.other_random_states():
        rng.restore(one)
        return rng.generator_that_advanced(other) is None
