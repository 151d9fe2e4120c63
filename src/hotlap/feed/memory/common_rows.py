"""`CommonRows`: one copy of a data set's samples, which the ranks of one machine fill together.

Each rank writes what it has read, and reads what the others have written: nobody waits. For the
memory see `hotlap.host.shared_memory`.
"""

import contextlib
import fcntl
import json
import logging
import math
import mmap
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from hotlap.host.shared_memory import address_of, make_memory, open_memory, this_machine

log = logging.getLogger("hotlap")

_ALIGNED = 64
"""Bytes; every tensor begins at a multiple of it, as torch's own do."""
_JOINED, _DIFFERS = 0, 1
"""Places in the header: processes that have joined, and whether their samples differ."""
_HEADER = 2

Layout = Sequence[tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of each tensor."""


class Tables:
    """Finds the copies that the ranks of one machine have together.

    Args:
        record: a file that all of them can write to, and nobody else.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self._own: _Record | None = None
        self._asked: Counter[str] = Counter()
        self.problem: str | None = None
        """Why the last copy could not be shared."""

    @classmethod
    def of_ranks(cls, gather: Callable[[Any], list[Any]]) -> "Tables | None":
        """Return those of the ranks that make this call together; None alone on a machine.

        Args:
            gather: gives each rank the values of all, JSON each, by rank.
        """
        own = None
        with contextlib.suppress(OSError):
            own = _Record()
        said = gather(None if own is None else [own.machine, own.path])
        if own is None:
            return None
        here = [path for machine, path in filter(None, said) if machine == own.machine]
        if len(here) < 2:
            return None
        tables = cls(Path(here[0]))
        tables._own = own
        return tables

    def join(self, form: str, layout: Layout, has_room: Callable[[], bool]) -> "CommonRows | None":
        """Return the copy of a data set, made by the first rank that asks; None if there is none.

        The first data set of a form is the same on every rank, so is the second one.

        Args:
            form: structure of a batch, in words.
            layout: of the rows, the same number of them in each tensor.
            has_room: asked before memory is taken.
        """
        key = f"{form} {[(shape, str(dtype)) for shape, dtype in layout]}"
        self._asked[key] += 1
        try:
            return self._join(f"{key} {self._asked[key]}", layout, has_room)
        except (OSError, ValueError) as error:
            log.info("resident: the ranks cannot share memory", exc_info=True)
            self.problem = f"shared memory cannot be used here ({error})"
            return None

    def _join(self, key: str, layout: Layout, has_room: Callable[[], bool]) -> "CommonRows | None":
        size = _Places(layout).size
        with open(self._record, "a+b") as file, locked(file.fileno()):
            file.seek(0)
            known = json.loads(file.read() or b"{}")
            address = known.get(key)
            descriptor = None if address is None else open_memory(address, size)
            if descriptor is None:
                if not has_room():
                    return None
                descriptor = make_memory("hotlap-rows", size)
                known[key] = address_of(descriptor)
                file.truncate(0)
                file.write(json.dumps(known).encode())
                file.flush()
        return CommonRows(descriptor, layout)


class _Record:
    """A record without a name, which others open while this process keeps it."""

    def __init__(self) -> None:
        self._descriptor = make_memory("hotlap-ranks")
        self.path = str(address_of(self._descriptor)["path"])
        self.machine = this_machine()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class CommonRows:
    """The rows of one data set in memory that several processes use.

    Args:
        descriptor: of that memory; it is closed with the last use of the rows.
        layout: of the rows.
    """

    def __init__(self, descriptor: int, layout: Layout) -> None:
        self._descriptor = descriptor
        places = _Places(layout)
        memory = mmap.mmap(descriptor, places.size)
        with contextlib.suppress(OSError, AttributeError):
            # Rows at random places need fewer entries of the TLB, see `pages`.
            memory.madvise(mmap.MADV_HUGEPAGE)
        header, self._have, *self.rows = places.tensors(memory)
        self._header = header
        self.mine = torch.zeros(len(self._have), dtype=torch.bool, device="cpu")
        """True for each sample that this process has written."""
        with self.locked():
            self._header[_JOINED] += 1
            self.number = int(self._header[_JOINED]) - 1
            """How many had joined before."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process read or write meanwhile which samples are held.

        What was written before it is left, another process sees that enters it later.
        """
        with locked(self._descriptor):
            yield

    @property
    def processes(self) -> int:
        """How many have joined."""
        return int(self._header[_JOINED])

    @property
    def differs(self) -> bool:
        """True if a process has found samples that its own data set does not give."""
        return bool(self._header[_DIFFERS])

    def note_difference(self) -> None:
        """Tell all others that the data sets differ."""
        self._header[_DIFFERS] = 1

    def add_to(self, have: torch.Tensor) -> None:
        """Note in `have`, shape (samples,), what is held by now; to be called while locked."""
        have |= self._have

    def give(self, index: torch.Tensor) -> None:
        """Let the others have the samples at `index`, which are written; while locked."""
        self._have[index] = True
        self.mine[index] = True


class _Places:
    """Where in the memory each tensor is."""

    def __init__(self, layout: Layout) -> None:
        samples = layout[0][0][0] if layout else 0
        self._layout = [((_HEADER,), torch.int64), ((samples,), torch.bool), *layout]
        self._offsets, self.size = [], 0
        for shape, dtype in self._layout:
            self._offsets.append(self.size)
            self.size += -(-math.prod(shape) * dtype.itemsize // _ALIGNED) * _ALIGNED

    def tensors(self, memory: mmap.mmap) -> list[torch.Tensor]:
        return [
            torch.frombuffer(memory, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)
            if math.prod(shape)
            else torch.empty(shape, dtype=dtype, device="cpu")
            for (shape, dtype), offset in zip(self._layout, self._offsets, strict=True)
        ]


@contextlib.contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Keep other processes out while entered; of one that is killed, Linux takes the lock back."""
    # Not flock: a forked child would hold that lock as well.
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN)
