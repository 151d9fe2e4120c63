"""Sends small batches from a worker as bytes through the pipe, without a shared-memory handle.

For each tensor in shared memory the two processes open a connection and prove to each other who
they are, while the worker would rather decode. A copy of some hundred kilobytes takes less.
"""

import itertools
import multiprocessing
import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch.utils.data import get_worker_info

from hotlap import rng
from hotlap.nested import flatten_into, rebuild

MOST_BYTES = 2**20
"""What is larger goes by shared memory."""
_LOOK_S = 1.0


def parcel(batch: Any) -> Any:
    """Return what becomes `batch` when it is unpickled, or the batch itself if it is no small one.

    Args:
        batch: tensors, in lists, tuples and dictionaries.
    """
    leaves: list[torch.Tensor] = []
    spec = flatten_into(batch, leaves)
    if spec is None or not all(map(is_plain, leaves)):
        return batch
    if sum(leaf.nbytes for leaf in leaves) > MOST_BYTES:
        return batch
    places = {leaf.untyped_storage().data_ptr() for leaf in leaves}
    # Tensors that share memory have to go on sharing it.
    return _Parcel(spec, leaves) if len(places) == len(leaves) else batch


class Parcels:
    """A collate function whose small batches leave a worker process as bytes.

    Args:
        collate: makes a batch of a list of samples.
        ear: hears, in the process that the workers belong to, of what they draw; None if they may.
    """

    def __init__(self, collate: Callable[[Any], Any], ear: "Ear | None" = None) -> None:
        self.collate = collate
        # Not the ear itself: a worker has no use for a copy.
        self._number = None if ear is None else ear.number
        self._states: Any = None

    def __call__(self, samples: Any) -> Any:
        if get_worker_info() is None:
            # The script may call it as well.
            return self.collate(samples)
        end_with_parent()
        batch = parcel(self.collate(samples))
        if self._number is None:
            return batch
        # What the first batch of a worker draws is not seen: the script may have seeded it.
        moved = None if self._states is None else rng.generator_that_advanced(self._states)
        self._states = rng.global_random_states()
        return batch if moved is None else _Told(self._number, moved, batch)


class Ear:
    """Hears which random generator reading moved in a worker."""

    _numbers = itertools.count()
    _all: ClassVar[weakref.WeakValueDictionary[int, "Ear"]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        self.moved: str | None = None
        self.number = next(self._numbers)
        self._all[self.number] = self

    @classmethod
    def hear(cls, number: int, moved: str, batch: Any) -> Any:
        """Note that a worker drew, and return its batch."""
        ear = cls._all.get(number)
        if ear is not None:
            ear.moved = moved
        return batch


class _Told:
    """Becomes the batch when it is unpickled, and says that it drew."""

    def __init__(self, number: int, moved: str, batch: Any) -> None:
        self._given = number, moved, batch

    def __reduce__(self) -> tuple[Any, ...]:
        return Ear.hear, self._given


@lru_cache(maxsize=1)
def end_with_parent() -> None:
    """Let this worker process end once its parent is gone, killed for instance.

    torch's workers do so as well, but wait for the thread that writes what nobody will read.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        own = getattr(multiprocessing.current_process(), "_start_method", None)
        by_server = (own or multiprocessing.get_start_method(allow_none=True)) == "forkserver"
        # The server that forks the workers ends with the script, too.
        expected = os.getppid() if by_server else parent.pid
        threading.Thread(target=_watch, args=(expected,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


class _Parcel:
    """Becomes the batch when it is unpickled."""

    def __init__(self, spec: Any, leaves: list[torch.Tensor]) -> None:
        self._spec = spec
        self._written = [written(leaf) for leaf in leaves]

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_parcel, (self._spec, self._written)


def is_plain(leaf: torch.Tensor) -> bool:
    """True if a tensor's bytes, one behind the other, say all of it."""
    if leaf.layout != torch.strided or leaf.is_nested or leaf.is_quantized:
        return False
    if leaf.device.type != "cpu" or leaf.is_conj() or leaf.is_neg():
        return False
    # Not `is_contiguous`, which asks nothing of dimensions of one.
    return leaf.stride() == _usual_strides(leaf.shape)


def _usual_strides(shape: torch.Size) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(1, size))
    return tuple(reversed(strides[: len(shape)]))


def written(leaf: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """Return what `open_leaf` makes such a plain tensor of."""
    return leaf.dtype, tuple(leaf.shape), leaf.view(-1).view(torch.uint8).numpy().tobytes()


def open_leaf(dtype: torch.dtype, shape: tuple[int, ...], octets: bytes) -> torch.Tensor:
    """Return the tensor of which these are the bytes."""
    # Memory that torch aligns: sums may depend on where a row of numbers begins.
    leaf = torch.empty(shape, dtype=dtype)
    if octets:
        theirs = torch.frombuffer(bytearray(octets), dtype=torch.uint8)
        leaf.view(-1).view(torch.uint8).copy_(theirs)
    return leaf


def _open_parcel(spec: Any, leaves: list[tuple[torch.dtype, tuple[int, ...], bytes]]) -> Any:
    return rebuild(spec, iter([open_leaf(*leaf) for leaf in leaves]))
