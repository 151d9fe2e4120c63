"""Shifts every seed that a script sets, so that it trains from another one."""

import random
from collections.abc import Callable
from typing import Any

import torch

_LARGEST = 2**32
"""NumPy takes no seed beyond."""


def shift_seeds(by: int) -> None:
    """Add `by` to every seed that is set from now on: of torch, Python and NumPy.

    A `torch.Generator` of the script's own keeps its seed.
    """
    import numpy

    depth = [0]

    def shift(original: Callable[..., Any]) -> Callable[..., Any]:
        def seed(*args: Any, **kwargs: Any) -> Any:
            # torch's function for all devices calls those of each.
            if depth[0] == 0:
                args = tuple(_sum(value, by) for value in args)
                kwargs = {name: _sum(value, by) for name, value in kwargs.items()}
            depth[0] += 1
            try:
                return original(*args, **kwargs)
            finally:
                depth[0] -= 1

        return seed

    torch.random.manual_seed = torch.manual_seed = shift(torch.manual_seed)
    torch.cuda.manual_seed = shift(torch.cuda.manual_seed)
    torch.cuda.manual_seed_all = shift(torch.cuda.manual_seed_all)
    random.seed = shift(random.seed)
    numpy.random.seed = shift(numpy.random.seed)
    numpy.random.default_rng = shift(numpy.random.default_rng)


def _sum(value: Any, by: int) -> Any:
    """Return a seed plus `by`; what is no whole number is no seed that could be moved."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return (value + by) % _LARGEST
