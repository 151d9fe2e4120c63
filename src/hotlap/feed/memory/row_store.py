"""Storage for the rows of one dataset: writes them, and compares samples that are read again."""

import gc
import logging
import weakref
from contextlib import nullcontext
from typing import Any

import torch

from hotlap.feed.memory.common_rows import CommonRows
from hotlap.feed.memory.gather import gatherer
from hotlap.feed.memory.parcel import is_plain
from hotlap.feed.memory.place import Gather, HostPlace, Place, no_room, samples_per_read
from hotlap.feed.purity.same_bytes import same_bytes
from hotlap.nested import flatten_into

log = logging.getLogger("hotlap")

OWN = "a copy of its own: "
"""What is said of a rank that does not share, before the reason."""


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
        self.common: CommonRows | None = None
        """The copy that other ranks have as well, None if this one is alone."""
        self._copies = ""
        self._may_join = True
        self.forget()
        share_memory(self)

    @property
    def bytes(self) -> int:
        """Bytes held in memory."""
        return sum(row.numel() * row.element_size() for row in self.rows or ())

    @property
    def copies(self) -> str:
        """What is said of the copies that several ranks have; empty of one that is alone."""
        if self.common is not None and self.common.processes > 1:
            return f"one copy for {self.common.processes} ranks"
        return self._copies

    def forget(self, why: str = "") -> None:
        """Give the memory back.

        Args:
            why: a rank that keeps samples again keeps them for itself; empty if it keeps none.
        """
        self._copies = f"{OWN}{why}" if why and self.place.tables is not None else self.copies
        # What others hold may be what has changed here.
        self._may_join = self._may_join and self.is_new
        self.common = None
        self.rows: list[torch.Tensor] | None = None
        self.have = torch.zeros(self.length, dtype=torch.bool, device="cpu")
        """True for each sample that is held, shape (length,)."""
        self.missing = self.length
        """Samples that are not."""

    @property
    def is_new(self) -> bool:
        """True if nothing was ever held."""
        return self.most_bytes == 0

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
        reason = None
        if self.rows is None:
            reason = _other_strides(leaves) or self._allocate(spec, leaves)
        return self._fill(spec, leaves, index) if reason is None else reason

    def _allocate(self, spec: Any, leaves: list[torch.Tensor]) -> str | None:
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves) * self.length
        if self._may_join and self.place.tables is not None and self._join(spec, leaves, size):
            return None
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

    def _join(self, spec: Any, leaves: list[torch.Tensor], size: int) -> bool:
        """Use the copy that the ranks of this machine have together; False if there is none."""
        whole, others = HostPlace(), bytes_of_others(self)
        whole.sharers = 1
        layout = [((self.length, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
        tables = self.place.tables
        self.common = tables.join(
            repr(spec),
            layout,
            lambda: no_room(whole, size, max_bytes=self.max_bytes, others=others) is None,
        )
        if self.common is None:
            self._copies = f"{OWN}{tables.problem}" if tables.problem else ""
            return False
        self.spec, self.rows = spec, self.common.rows
        self.most_bytes = max(self.most_bytes, self.bytes)
        return True

    def add_common(self) -> bool:
        """See what other ranks have read by now; False if their samples are not this one's."""
        if self.common is None:
            return True
        with self.common.locked():
            self.common.add_to(self.have)
            differs = self.common.differs
        self.missing = self.length - int(self.have.sum())
        return not differs

    @property
    def of_others(self) -> torch.Tensor:
        """Positions of samples that other ranks have read, int64, shape (n,)."""
        if self.common is None:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        return (self.have & ~self.common.mine).nonzero().flatten()

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
        reason = _other_strides(leaves)
        if reason is not None:
            return reason
        with nullcontext() if self.common is None else self.common.locked():
            if self.common is not None:
                # Each row is written by one rank: of its own rows a rank knows what they are.
                self.common.add_to(self.have)
                is_new = ~self.have[index]
                index, leaves = index[is_new], [leaf[is_new] for leaf in leaves]
            for leaf, row in zip(leaves, self.rows, strict=True):
                self.place.keep(row, index, leaf)
            self.have[index] = True
            if self.common is not None:
                self.common.give(index)
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


def _other_strides(leaves: list[torch.Tensor]) -> str | None:
    """Return why a batch from memory would have other strides, in which kernels round otherwise."""
    if all(map(is_plain, leaves)):
        return None
    return "a batch holds a tensor that is not contiguous in the host's memory"


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
