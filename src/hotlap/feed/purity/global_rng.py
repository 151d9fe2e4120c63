"""RNG states of Python, NumPy and torch around a read: which generator has it advanced?

A data set may only be kept in memory if it is. Looked at here are the global random states of
Python, numpy and torch, around every first read and around samples that are read again under other
states; what the data set's own code can reach is the subject of `reach`.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OTHER_SEED = 0x5EED


def global_random_states() -> tuple[Any, Any, torch.Tensor]:
    """Return the states of Python's, numpy's (if loaded) and torch's global generators."""
    numpy = sys.modules.get("numpy")
    numpy_state = None
    if numpy is not None and "numpy.random" in sys.modules:
        numpy_state = numpy.random.get_state(legacy=False)
    return random.getstate(), numpy_state, torch.get_rng_state()


def generator_that_advanced(before: tuple[Any, Any, torch.Tensor]) -> str | None:
    """Name the global generator that has been drawn from since `before`, or return None."""
    python_state, numpy_state, torch_state = global_random_states()
    if python_state != before[0]:
        return "Python's global RNG"
    if numpy_state is not None and before[1] is not None:
        old, new = before[1]["state"], numpy_state["state"]
        # Every other Gaussian number is one that was kept.
        kept = [(state["has_gauss"], state["gauss"]) for state in (before[1], numpy_state)]
        if old["pos"] != new["pos"] or kept[0] != kept[1] or not (old["key"] == new["key"]).all():
            return "numpy's global RNG"
    if not torch.equal(torch_state, before[2]):
        return "torch's global RNG"
    return None


def restore(states: tuple[Any, Any, torch.Tensor]) -> None:
    """Put the global generators back into `states`."""
    random.setstate(states[0])
    if states[1] is not None:
        sys.modules["numpy"].random.set_state(states[1])
    torch.set_rng_state(states[2])


def reseed(seed: int) -> None:
    """Seed Python's, numpy's (if loaded) and torch's global generator."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if "numpy.random" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


class SeededGenerators:
    """Runs a block with the global generators seeded.

    Args:
        seed: from 0, below 2**63.
        puts_back: the generators are as they were afterwards.
    """

    def __init__(self, seed: int, *, puts_back: bool) -> None:
        self._seed, self._puts_back = seed, puts_back
        self._states: Any = None

    def __enter__(self) -> None:
        if self._puts_back:
            self._states = global_random_states()
        reseed(self._seed)

    def __exit__(self, *_: Any) -> None:
        if self._puts_back:
            restore(self._states)


@contextmanager
def other_random_states() -> Iterator[None]:
    """Run a block under other global random states, and put the old ones back."""
    states = global_random_states()
    reseed(_OTHER_SEED)
    try:
        yield
    finally:
        restore(states)


def same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compare two tensors bit by bit (NaN equals itself), dtype and shape included."""
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return torch.equal(_as_bytes(left), _as_bytes(right))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.stride(0) != 1:
        # One number of a strided tensor is contiguous, and cannot be viewed as bytes.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8)
