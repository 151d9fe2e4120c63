"""Storage for the rows of one dataset: writes them, and compares samples that are read again."""

import gc
import logging
import weakref
from typing import Any

import torch

from hotlap.feed.memory.gather import gatherer
from hotlap.feed.memory.place import Gather, Place, no_room, samples_per_read
from hotlap.feed.purity.same_bytes import same_bytes
from hotlap.nested import flatten_into

log = logging.getLogger("hotlap")


class RowStore:
    """Rows that are allocated when the first batch is kept, and filled batch by batch.

    Args:
        length: samples of the data set.
        max_bytes: hold no more than this together with all other data sets.
        place: where the rows are kept.
    """

    def __init__(self, length: int, max_bytes: int, place: Place) -> None:
        self.length, self.max_bytes, self.place = length, max_bytes, place
        self.most_bytes = 0
        """Bytes held, while they were."""
        self.spec: Any = None
        """Structure of a batch, as `flatten_into` gives it."""
        self.forget()
        share_memory(self)

    @property
    def bytes(self) -> int:
        """Bytes held in memory."""
        return sum(row.numel() * row.element_size() for row in self.rows or ())

    def forget(self) -> None:
        """Give the memory back."""
        self.rows: list[torch.Tensor] | None = None
        self.have = torch.zeros(self.length, dtype=torch.bool)
        """True for each sample that is held, shape (length,)."""
        self.missing = self.length
        """Samples that are not."""

    @property
    def is_empty(self) -> bool:
        """True while nothing is held."""
        return self.rows is None

    def gatherer(self) -> Gather:
        """Return `gather(positions) -> batch`."""
        assert self.rows is not None
        return self.place.wrap_gather(gatherer(self.spec, self.rows))

    def samples_per_read(self, most: int) -> int:
        """Return how many samples may be read in one go beside what is held, `most` or fewer."""
        return samples_per_read(self.rows, most)

    def keep(self, batch: Any, index: torch.Tensor) -> str | None:
        """Keep the samples of a batch; return why they cannot be kept, None if they are.

        Args:
            batch: a tensor, or several nested, each with one row per sample.
            index: positions of the samples, int64, shape (n,).
        """
        leaves: list[torch.Tensor] = []
        spec = flatten_into(batch, leaves)
        if spec is None or any(leaf.dim() == 0 or len(leaf) != len(index) for leaf in leaves):
            return "a batch is not made of tensors with one row per sample"
        reason = self._allocate(spec, leaves) if self.rows is None else None
        return self._fill(spec, leaves, index) if reason is None else reason

    def _allocate(self, spec: Any, leaves: list[torch.Tensor]) -> str | None:
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves) * self.length
        reason = self._no_room(size)
        if reason is not None and bytes_of_others(self):
            # What a finished run held may only wait for Python to see that nobody can reach it.
            gc.collect()
            reason = self._no_room(size)
        if reason is not None and self.place.otherwise is not None:
            log.info("resident: %s", reason)
            self.place = self.place.otherwise
            return self._allocate(spec, leaves)
        if reason is not None:
            return reason
        self.spec = spec
        self.rows = [self.place.empty((self.length, *leaf.shape[1:]), leaf) for leaf in leaves]
        self.most_bytes = max(self.most_bytes, self.bytes)
        return None

    def _no_room(self, size: int) -> str | None:
        return no_room(self.place, size, max_bytes=self.max_bytes, others=bytes_of_others(self))

    def _fill(self, spec: Any, leaves: list[torch.Tensor], index: torch.Tensor) -> str | None:
        assert self.rows is not None
        fits = spec == self.spec and all(
            leaf.shape[1:] == row.shape[1:]
            and leaf.dtype == row.dtype
            and leaf.device.type == "cpu"
            for leaf, row in zip(leaves, self.rows, strict=True)
        )
        if not fits:
            return "samples differ in shape, dtype or structure"
        for leaf, row in zip(leaves, self.rows, strict=True):
            self.place.keep(row, index, leaf)
        self.have[index] = True
        self.missing = self.length - int(self.have.sum())
        return None

    def difference(self, again: Any, index: torch.Tensor) -> str | None:
        """Return what differs from the rows that are held, None if nothing does.

        Args:
            again: a batch of samples that are held, read again.
            index: their positions, int64, shape (n,).
        """
        assert self.rows is not None
        leaves: list[torch.Tensor] = []
        if flatten_into(again, leaves) != self.spec:
            return "samples differ in structure when read again"
        for leaf, row in zip(leaves, self.rows, strict=True):
            if not same_bytes(leaf, self.place.read_back(row, index)):
                which = f"{int(index[0])} to {int(index[-1])}" if len(index) > 1 else int(index[0])
                return f"sample {which} is not the same when read again"
        return None


def share_memory(store: Any) -> None:
    """Count what a store holds, as `bytes` in `place`, wherever others ask for memory."""
    _everybody.add(store)


def bytes_of_others(store: Any) -> int:
    """Return the bytes that other data sets hold in the same place."""
    return sum(
        held.bytes
        for held in _everybody
        if held is not store and held.place.name == store.place.name
    )


_everybody: weakref.WeakSet[Any] = weakref.WeakSet()
"""All that hold samples in this process: they share what memory there is."""
