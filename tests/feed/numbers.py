"""Iterable data sets for tests."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info


class Numbers(IterableDataset[Any]):
    """0, 1, 2 ..., and knows nothing of workers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        yield from range(self.count)


class SplitsItself(Numbers):
    """The same in blocks, one for each worker, as the documentation of torch does it."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None:
            return iter(range(self.count))
        size = -(-self.count // info.num_workers)
        return iter(range(info.id * size, min(self.count, (info.id + 1) * size)))


class Noisy(SplitsItself):
    """Draws from all three global generators for each sample."""

    def __iter__(self) -> Iterator[Any]:
        for number in super().__iter__():
            noise = random.random() + np.random.random() + torch.rand(3)
            yield torch.full((3,), number / self.count) + noise, number % 2
