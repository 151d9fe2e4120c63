"""Samples kept in memory as the first epoch reads them, and served from there afterwards.

Nothing is read ahead and nothing twice, so a run of one epoch pays nothing. The batch that comes
out is the one that default collation would have made of the same indices, bit for bit.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hotlap.feed import fixed

log = logging.getLogger("hotlap")

REREAD_AT_FIRST = 256
"""Samples read again under other random states before the first batch is served from memory."""
REREAD_PER_EPOCH = 16
"""Samples read again at the start of every later epoch."""
REREAD_EVERY = 1024
"""One sample in so many is read again while serving."""
_FILL_CHUNK = 256


class ResidentRows:
    """The rows of one map-style data set.

    Args:
        dataset: the data set, for its length and to see whether it changes.
        max_bytes: refuse, rather than hold more than this.
    """

    def __init__(self, dataset: Any, max_bytes: int) -> None:
        self.dataset = dataset
        self.length = len(dataset)
        self.max_bytes = max_bytes
        self.served = 0
        """Batches served from memory."""
        self.read_batches = 0
        self.refused: str | None = None
        self._read: Callable[[Any], Any] | None = None
        self._rows: list[torch.Tensor] | None = None
        self._spec: Any = None
        self._have = torch.zeros(self.length, dtype=torch.bool)
        self._missing = self.length
        self._checked = False
        self._since_check = 0
        self._marks = fixed.fingerprint(dataset)
        owner = fixed.own_generator(dataset)
        if owner is not None:
            self.refuse(f"the data set holds a random generator of its own ({owner})")

    @property
    def bytes(self) -> int:
        """Bytes held in memory."""
        return sum(row.numel() * row.element_size() for row in self._rows or ())

    def bind(self, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Start an epoch over `read(indices) -> batch`; return the function to call instead."""
        self._read = read
        if self.refused is None and len(self.dataset) != self.length:
            self.refuse("the data set's length changes")
        marks = fixed.fingerprint(self.dataset)
        if marks != self._marks:
            changed = sorted(k for k in marks | self._marks if marks.get(k) != self._marks.get(k))
            log.info("resident: the data set's %s changed, its samples are read anew", changed[0])
            self._marks = marks
            self._forget()
        if self._checked and self._rows is not None:
            self._reread(REREAD_PER_EPOCH)
        return self.fetch

    def fetch(self, indices: Any) -> Any:
        """Return the collated batch of the sampler's `indices`."""
        assert self._read is not None
        if self.refused is not None:
            return self._read(indices)
        index = self._positions(indices)
        if index is None:
            self.refuse("the sampler yields something else than positions from 0 on")
            return self._read(indices)
        if self._missing and not bool(self._have[index].all()):
            return self._read_and_keep(indices, index)
        if not self._checked:
            self._checked = True
            self._reread(REREAD_AT_FIRST)
            if self.refused is not None:
                return self._read(indices)
        self.served += 1
        self._since_check += len(indices)
        if self._since_check >= REREAD_EVERY:
            self._since_check = 0
            self._reread_one(int(index[0]))
            if self.refused is not None:
                return self._read(indices)
        rows = self._rows
        assert rows is not None
        return rebuild(self._spec, iter([row.index_select(0, index) for row in rows]))

    def _positions(self, indices: Any) -> torch.Tensor | None:
        """Return the sampler's indices as a tensor, None if rows cannot be named by them."""
        try:
            index = torch.as_tensor(indices)
        except (TypeError, ValueError, RuntimeError, IndexError):
            return None
        if index.dim() != 1 or index.dtype != torch.int64 or index.numel() == 0:
            return None
        return index if int(index.min()) >= 0 and int(index.max()) < self.length else None

    def fill(self) -> None:
        """Read every sample that is still missing, at once. Only trials do this."""
        assert self._read is not None
        missing = (~self._have).nonzero().flatten().tolist()
        states = fixed.global_random_states()
        for start in range(0, len(missing), _FILL_CHUNK):
            if self.refused is not None:
                break
            chunk = missing[start : start + _FILL_CHUNK]
            self._read_and_keep(chunk, torch.as_tensor(chunk))
        fixed.restore(states)

    def refuse(self, reason: str) -> None:
        """Stop serving from memory, for `reason`."""
        if self.served:
            log.warning(
                "resident: %s, seen only after %d batches had been served from memory; samples are "
                "read as usual from here on",
                reason,
                self.served,
            )
        self.refused = reason
        self._forget()

    def _forget(self) -> None:
        self._rows = None
        self._have = torch.zeros(self.length, dtype=torch.bool)
        self._missing = self.length
        self._checked = False

    def _read_and_keep(self, indices: Any, index: torch.Tensor) -> Any:
        assert self._read is not None
        before = fixed.global_random_states()
        batch = self._read(indices)
        self.read_batches += 1
        drawn = fixed.moved(before)
        if drawn is not None:
            self.refuse(f"reading a sample draws from {drawn}")
            return batch
        leaves: list[torch.Tensor] = []
        spec = flatten(batch, leaves)
        if spec is None or any(leaf.dim() == 0 or len(leaf) != len(index) for leaf in leaves):
            self.refuse("a batch is not made of tensors with one row per sample")
        elif self._rows is None:
            self._allocate(spec, leaves)
        if self.refused is None:
            self._keep(spec, leaves, index)
        return batch

    def _allocate(self, spec: Any, leaves: list[torch.Tensor]) -> None:
        size = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves) * self.length
        limit = min(self.max_bytes, available_bytes() // 2)
        if size > limit:
            self.refuse(
                f"the data set takes {size / 2**20:.0f} MiB, more than the {limit / 2**20:.0f} MiB "
                "that may be used (option max_mib, and half of the free memory)"
            )
            return
        self._spec = spec
        self._rows = [
            torch.empty((self.length, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in leaves
        ]

    def _keep(self, spec: Any, leaves: list[torch.Tensor], index: torch.Tensor) -> None:
        assert self._rows is not None
        fits = spec == self._spec and all(
            leaf.shape[1:] == row.shape[1:]
            and leaf.dtype == row.dtype
            and leaf.device == row.device
            for leaf, row in zip(leaves, self._rows, strict=True)
        )
        if not fits:
            self.refuse("samples differ in shape, dtype or structure")
            return
        for leaf, row in zip(leaves, self._rows, strict=True):
            row.index_copy_(0, index, leaf)
        self._have[index] = True
        self._missing = self.length - int(self._have.sum())

    def _reread(self, count: int) -> None:
        held = self._have.nonzero().flatten()
        stride = max(1, len(held) // count)
        # Not always the same samples: every epoch starts one further on.
        for position in held[self.served % stride :: stride].tolist():
            if self.refused is not None:
                return
            self._reread_one(position)

    def _reread_one(self, position: int) -> None:
        assert self._read is not None
        assert self._rows is not None
        with fixed.other_random_states():
            before = fixed.global_random_states()
            again = self._read([position])
            drawn = fixed.moved(before)
        if drawn is not None:
            self.refuse(f"reading a sample draws from {drawn}")
            return
        leaves: list[torch.Tensor] = []
        spec = flatten(again, leaves)
        kept = [row[position : position + 1] for row in self._rows]
        same = spec == self._spec and all(
            fixed.same_bytes(a, b) for a, b in zip(leaves, kept, strict=True)
        )
        if not same:
            self.refuse(f"sample {position} is not the same when it is read again")


def available_bytes() -> int:
    """Return the bytes of memory that can still be taken without swapping."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    import os

    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def flatten(value: Any, leaves: list[torch.Tensor]) -> Any:
    """Append the tensors of a nested batch to `leaves`; return its structure, None if unusable."""
    if type(value) is torch.Tensor and not value.requires_grad:
        leaves.append(value)
        return "tensor"
    # A subclass may be made in ways that its contents do not show.
    if type(value) is dict:
        parts = {key: flatten(item, leaves) for key, item in value.items()}
        return None if None in parts.values() else (type(value), tuple(parts.items()))
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        items = tuple(flatten(item, leaves) for item in value)
        return None if None in items else (type(value), items)
    return None


def rebuild(spec: Any, leaves: Any) -> Any:
    """Make a nested batch of that structure from an iterator over its tensors."""
    if spec == "tensor":
        return next(leaves)
    kind, parts = spec
    if issubclass(kind, dict):
        return kind({key: rebuild(part, leaves) for key, part in parts})
    items = [rebuild(part, leaves) for part in parts]
    # A named tuple takes its fields one by one, a list or a tuple takes them together.
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
