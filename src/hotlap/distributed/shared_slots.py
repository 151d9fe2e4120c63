"""`SharedSlots`: sums over the ranks of one machine, in memory that all of them read.

Over a loopback connection, each byte that is summed is copied several times, by both ranks and by
the kernel. In shared memory each rank writes its tensors once and reads those of the others. Sums
are made in the order of the ranks, as one process adds up as many micro-batches.
"""

import contextlib
import mmap
import os
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from hotlap.host.memory import available_bytes
from hotlap.host.shared_memory import Address, address_of, make_memory, open_memory

MAX_RANKS = 4
"""Every rank reads the tensors of all: with more of them, parts are better added up by one each."""
_SHARE_OF_MEMORY = 8
"""The slots of all ranks take at most one part in so many of the memory that is free."""


class Meetings(Protocol):
    """What `SharedSlots` needs of `hotlap.distributed.reduce.Reduce`."""

    rank: int
    world: int
    meetings: int
    """How often all ranks have waited for each other."""

    def gather(self, value: Any) -> list[Any]: ...

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]: ...

    def wait(self) -> None: ...


class SharedSlots:
    """Two slots of each rank, written in turn: while a slow rank still reads those of one sum,
    the others write those of the next.

    Args:
        reduce: the ranks.
        slots: of each rank its two, shape (2, elements).
    """

    def __init__(self, reduce: Meetings, slots: list[torch.Tensor]) -> None:
        self._reduce, self._slots = reduce, slots
        self._turn = 0
        self._used_at = [-1, -1]
        """Of each slot, how often the ranks had met when it was last written or read."""

    def write(self, tensors: Sequence[torch.Tensor]) -> None:
        """Write this rank's tensors of the next sum, of as many elements as a slot has."""
        # Before anything that other ranks take part in: memory may run out for it.
        flat = [tensor.detach().reshape(-1) for tensor in tensors]
        self._turn ^= 1
        if self._used_at[self._turn] == self._reduce.meetings:
            # Another rank may not have read what is there.
            self._reduce.wait()
        own = self._slots[self._reduce.rank][self._turn]
        torch.cat(flat, out=own)
        self._used_at[self._turn] = self._reduce.meetings

    def add_up(self, total: torch.Tensor) -> None:
        """Write the sums of what all ranks have written last into a tensor, shape (elements,)."""
        if self._used_at[self._turn] == self._reduce.meetings:
            # Another rank may not have written its tensors yet.
            self._reduce.wait()
        first, second, *others = (slots[self._turn] for slots in self._slots)
        torch.add(first, second, out=total)
        for other in others:
            total.add_(other)
        self._used_at[self._turn] = self._reduce.meetings


def share_memory(reduce: Meetings, elements: int, dtype: torch.dtype) -> SharedSlots | None:
    """Make slots; all ranks call it, and get them, or None where one of them cannot have them.

    The memory has no name, so nothing is left of it when the ranks end, however they do.
    """
    size = 2 * elements * dtype.itemsize
    with contextlib.ExitStack() as stack:
        own = None
        if size * reduce.world * _SHARE_OF_MEMORY <= available_bytes():
            own = _offer(size, stack)
        opened = [_open(size, offer, dtype) for offer in reduce.gather(own)]
        # None closes its memory before the others have opened it.
        failures = reduce.sum_numbers([float(None in opened)])[0]
    slots = [each for each in opened if each is not None]
    return None if failures else SharedSlots(reduce, slots)


def _offer(size: int, stack: contextlib.ExitStack) -> Address | None:
    """Return where others find new memory of this process while the stack is open, None if there
    is none to be had."""
    try:
        descriptor = make_memory("hotlap-sums", size)
        stack.callback(os.close, descriptor)
        return address_of(descriptor)
    except OSError:
        return None


def _open(size: int, offer: Address | None, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the slots of the rank that has offered them, None if they are not there."""
    try:
        descriptor = None if offer is None else open_memory(offer, size)
        if descriptor is None:
            return None
        try:
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
    except OSError:
        return None
    return torch.frombuffer(memory, dtype=dtype).view(2, -1)
