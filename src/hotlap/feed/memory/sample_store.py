"""Storage for whole samples, which a collate function of the script's own makes batches of.

Samples may differ in shape, and hold numbers and text beside tensors and arrays. What is handed out
is a copy: a collate function, or the step, may write into it.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch

from hotlap.feed.memory.place import HostPlace, no_room
from hotlap.feed.memory.row_store import bytes_of_others, share_memory
from hotlap.feed.purity.same_bytes import same_bytes

_CONSTANT = (bool, int, float, complex, str, bytes, type(None))
_LOOK_EVERY = 64
"""Samples kept between two looks at the memory that is left."""
_AT_ONCE = 16 * 2**20
"""Bytes of samples that are read in one go, beside those that are held."""
_TENSOR_BYTES = 400
"""Of a tensor's own record and its storage's, beside its numbers."""


class SampleStore:
    """Samples that are kept batch by batch.

    Args:
        length: samples of the data set.
        max_bytes: hold no more than this together with all other data sets.
    """

    def __init__(self, length: int, max_bytes: int) -> None:
        self.length, self.max_bytes, self.place = length, max_bytes, HostPlace()
        self.most_bytes = 0
        """Bytes held, while they were."""
        self.forget()
        share_memory(self)

    def forget(self) -> None:
        """Give the memory back."""
        self.samples: list[Any] | None = None
        self.bytes = 0
        """Bytes held in memory."""
        self.have = torch.zeros(self.length, dtype=torch.bool)
        """True for each sample that is held, shape (length,)."""
        self.missing = self.length
        """Samples that are not."""
        self._since_look = _LOOK_EVERY

    @property
    def is_empty(self) -> bool:
        """True while nothing is held."""
        return self.samples is None

    def keep(self, batch: Any, index: torch.Tensor) -> str | None:
        """Keep the samples of a batch; return why they cannot be kept, None if they are.

        Args:
            batch: a list of samples.
            index: positions of the samples, int64, shape (n,).
        """
        if type(batch) is not list or len(batch) != len(index):
            return f"`__getitems__` returned {type(batch).__name__}, not a list of its samples"
        positions = index.tolist()
        try:
            copies = [_copy_of(sample) for sample in batch]
        except _Unfit as error:
            return str(error)
        if self.samples is None:
            self.samples = [None] * self.length
        new = [p for p in dict.fromkeys(positions) if not self.have[p]]
        for position, sample in zip(positions, copies, strict=True):
            self.samples[position] = sample
        self.have[index] = True
        self.missing = self.length - int(self.have.sum())
        self.bytes += sum(_size_of(self.samples[position]) for position in new)
        self.most_bytes = max(self.most_bytes, self.bytes)
        return self._look(len(new))

    def _look(self, kept: int) -> str | None:
        """Return why there is no room for all samples, by the size of those that are held."""
        self._since_look += kept
        if self._since_look < _LOOK_EVERY:
            return None
        self._since_look = 0
        held = self.length - self.missing
        still = int(self.bytes / held * self.missing)
        # What is held is in the free memory no more, and in the limit still.
        return no_room(
            self.place,
            still,
            max_bytes=self.max_bytes - self.bytes,
            others=bytes_of_others(self),
        )

    def difference(self, again: Any, index: torch.Tensor) -> str | None:
        """Return what differs from the samples that are held, None if nothing does.

        Args:
            again: a list of samples that are held, read again.
            index: their positions, int64, shape (n,).
        """
        assert self.samples is not None
        for position, sample in zip(index.tolist(), again, strict=True):
            if not _are_same(self.samples[position], sample):
                return f"sample {position} is not the same when read again"
        return None

    def gatherer(self) -> Callable[[torch.Tensor], list[Any]]:
        """Return `gather(positions) -> samples`."""
        samples = self.samples
        assert samples is not None
        return lambda index: [_copy_of(samples[position]) for position in index.tolist()]

    def samples_per_read(self, most: int) -> int:
        """Return how many samples may be read in one go beside what is held, `most` or fewer."""
        held = self.length - self.missing
        if not held:
            return 1
        return max(1, min(most, _AT_ONCE // max(1, self.bytes // held)))


class _Unfit(Exception):
    """A sample holds something of which a copy may behave in another way."""


def _copy_of(sample: Any) -> Any:
    """Return a sample like it, whose parts can be written to.

    Raises:
        _Unfit: it holds something of which a copy may behave in another way.
    """
    kind = type(sample)
    if kind in _CONSTANT:
        return sample
    if kind is torch.Tensor:
        if (
            sample.requires_grad
            or sample.layout is not torch.strided
            or sample.device.type != "cpu"
        ):
            raise _Unfit(
                "a sample holds a tensor that is sparse, on a device, or requires a gradient. "
                "Return dense tensors of the host from `__getitem__` to use resident"
            )
        return sample.clone()
    if kind is tuple or kind is list:
        return kind([_copy_of(part) for part in sample])
    if kind is dict:
        return {key: _copy_of(part) for key, part in sample.items()}
    if _is_named(sample):
        return kind(*[_copy_of(part) for part in sample])
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and not sample.dtype.hasobject:
        return sample.copy(order="K")
    if numpy is not None and isinstance(sample, numpy.generic) and not sample.dtype.hasobject:
        return sample
    raise _Unfit(
        f"a sample holds an object of class {kind.__name__}. Return tensors, arrays, numbers or "
        "text from `__getitem__` to use resident"
    )


def _is_named(sample: Any) -> bool:
    is_named = isinstance(sample, tuple) and hasattr(sample, "_fields")
    return is_named and not getattr(sample, "__dict__", None)


def _are_same(held: Any, other: Any) -> bool:
    """Compare two samples bit by bit."""
    kind = type(held)
    if kind is not type(other):
        return False
    if kind is torch.Tensor:
        return held.stride() == other.stride() and same_bytes(held, other)
    if isinstance(held, tuple | list):
        return len(held) == len(other) and all(map(_are_same, held, other))
    if kind is dict:
        same_keys = list(held) == list(other)
        return same_keys and all(_are_same(part, other[key]) for key, part in held.items())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(held, numpy.ndarray | numpy.generic):
        same_form = held.dtype == other.dtype and held.shape == other.shape
        return same_form and held.tobytes() == other.tobytes()
    # What is not a number equals nothing, itself neither.
    return repr(held) == repr(other) if isinstance(held, float | complex) else held == other


def _size_of(sample: Any) -> int:
    """Return about how many bytes a sample takes."""
    size = sys.getsizeof(sample)
    if isinstance(sample, torch.Tensor):
        return size + sample.nbytes + _TENSOR_BYTES
    if isinstance(sample, tuple | list):
        return size + sum(map(_size_of, sample))
    if isinstance(sample, dict):
        return size + sum(map(_size_of, sample.values()))
    return size
