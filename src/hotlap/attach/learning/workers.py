"""Finds DataLoader workers that send equal batches, or copies of one random generator."""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy
import torch
from torch.utils.data import IterableDataset

from hotlap import nested
from hotlap.attach.learning.drawing_code import (
    GENERATORS,
    drawn_global,
    draws,
    draws_from,
    seeds_alike,
)
from hotlap.trace.learning import WorkerFacts

_BATCHES = 4
"""Batches of each worker that are compared."""
_DEPTH = 3
_NO_HOLDERS = (torch.Tensor, numpy.ndarray, type, ModuleType)
"""The generators of modules are those that torch seeds in each worker."""


class Workers:
    """Looks at the first pass over a loader with workers.

    Args:
        loader: has at least one.
        where: the loop over it.
    """

    def __init__(self, loader: Any, where: str) -> None:
        self.where = where
        self._workers = loader.num_workers
        self._is_persistent = loader.persistent_workers
        self._compares = isinstance(loader.dataset, IterableDataset) and self._workers >= 2
        self._digests: list[int] = []
        self._generator = ""
        self._is_seeded_alike = False
        # One worker that lives through all epochs draws as none would.
        if self._workers < 2 and self._is_persistent:
            return
        functions = [loader.collate_fn, *getattr(loader.dataset, "__dict__", {}).values()]
        if loader.worker_init_fn is None:
            generators = _find_generators(loader.dataset, "", _DEPTH)
            self._generator = next(generators, "") or drawn_global(type(loader.dataset), functions)
        elif seeds_alike(loader.worker_init_fn):
            self._is_seeded_alike = draws(type(loader.dataset), functions)

    def add(self, batch: Any) -> None:
        """Note a batch, in the order in which they come."""
        if self._compares and len(self._digests) < _BATCHES * self._workers:
            # One of several, as masks are, may be equal in different batches.
            found = tuple((each.shape, _bytes_of(each)) for each in nested.tensors(batch))
            if found:
                self._digests.append(hash(found))

    def facts(self) -> WorkerFacts:
        """Return what was seen."""
        return WorkerFacts(
            where=self.where,
            workers=self._workers,
            # Each batch once: what is there a second time was sent by another worker.
            repeats=len(self._digests) - len(set(self._digests)),
            looked_at=len(self._digests),
            generator=self._generator,
            is_seeded_alike=self._is_seeded_alike,
            are_persistent=self._is_persistent,
        )


def _bytes_of(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def _find_generators(
    holder: Any, path: str, depth: int, owner: "tuple[type, str] | None" = None
) -> Iterator[str]:
    """Give the attributes below an object with a generator that the user's code draws from.

    Args:
        holder: is searched.
        path: of attributes that leads to it.
        depth: of attributes that are searched below its own.
        owner: class and attribute that it is an element of, if it is one of a list.
    """
    is_list = isinstance(holder, list | tuple)
    inner = vars(holder).items() if not is_list and hasattr(holder, "__dict__") else ()
    if is_list:
        inner = [(str(number), each) for number, each in enumerate(holder[:20])]
    for name, value in list(inner):
        below = f"{path}.{name}" if path else name
        of = owner if is_list else (type(holder), name)
        if isinstance(value, GENERATORS):
            if of is not None and draws_from(*of):
                yield below
        elif depth and not isinstance(value, _NO_HOLDERS):
            yield from _find_generators(value, below, depth - 1, of)
