"""Where the rows of a resident dataset are kept: host memory or device memory."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hotlap.device.accelerator import Cuda, Device
from hotlap.feed.memory.pages import empty_rows
from hotlap.host.memory import available_bytes, transient_bytes

Gather = Callable[[torch.Tensor], Any]
"""`gather(positions) -> batch`; the positions are where the rows are."""

_LOOK_EVERY = 16 * 2**20
"""Bytes written between two looks at what memory is left."""
_AT_ONCE = 16 * 2**20
"""Bytes of samples that are read in one go, beside those that are held."""
_LEFT = 32 * 2**20
"""Bytes that are never taken."""


class Place(Protocol):
    """What `ResidentRows` asks of a memory."""

    name: str
    gathers_ahead: bool
    """True if several small batches are gathered at once: a call costs more than their bytes."""
    otherwise: "Place | None"
    """The place to take if this one is too small."""
    tables: Any
    """`common_rows.Tables`, where ranks keep one copy there for all of them; None elsewhere."""

    heeds_option: bool
    """True if the technique's option `max_mib` limits it as well."""

    @property
    def share(self) -> str:
        """How much may be taken, in words."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes that may be taken."""
        ...

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Return rows of that shape, not yet written."""
        ...

    def keep(self, rows: torch.Tensor, index: torch.Tensor, leaf: torch.Tensor) -> None:
        """Write the rows at `index`, int64 on the host, shape (n,)."""
        ...

    def read_back(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return the rows at `index` on the host, to be compared."""
        ...

    def wrap_gather(self, gather: Gather) -> Gather:
        """Return `gather` for positions that are on the host."""
        ...


class HostPlace:
    """The host's memory.

    Pages are taken as rows are written, while the run may take more for itself. Both `keep` and
    `kept` raise MemoryError where the run would be left with too little.

    Args:
        tables: see `Place`.
    """

    name = "the host's memory"
    sharers = 1
    """Processes of this machine that keep the same data, each for itself; of the class: it is the
    same for all that this process keeps."""
    gathers_ahead = heeds_option = True
    otherwise: Place | None = None

    def __init__(self, tables: Any = None) -> None:
        self.tables = tables
        self._unwritten = 0
        self._since_look = 0

    @property
    def share(self) -> str:
        """See `Place`."""
        part = "half" if self.sharers == 1 else f"1/{2 * self.sharers}"
        return f"option max_mib, and {part} of the free memory"

    def free_bytes(self) -> int:
        """See `Place`."""
        self._unwritten = 0
        return available_bytes() // (2 * self.sharers)

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """See `Place`."""
        rows = empty_rows(shape, like.dtype)
        self._unwritten += rows.nbytes
        return rows

    def keep(self, rows: torch.Tensor, index: torch.Tensor, leaf: torch.Tensor) -> None:
        """See `Place`."""
        self._since_look += leaf.nbytes
        if self._since_look >= _LOOK_EVERY:
            self._look()
        rows.index_copy_(0, index, leaf)
        self._unwritten = max(0, self._unwritten - leaf.nbytes)

    def read_back(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """See `Place`."""
        self._look()
        return rows.index_select(0, index)

    def _look(self) -> None:
        """Raise MemoryError if the rows would take what the run itself needs."""
        self._since_look = 0
        free, needed = available_bytes(), self._unwritten + transient_bytes() + _LEFT
        if free < needed:
            raise MemoryError(
                f"only {free / 2**20:.0f} MiB of memory are available, and holding the dataset in "
                f"addition to the run needs {needed / 2**20:.0f} MiB"
            )

    def wrap_gather(self, gather: Gather) -> Gather:
        return gather


class DevicePlace:
    """The device's memory: a batch is gathered there, and only its positions go over the bus.

    Args:
        device: with memory of its own.
        otherwise: the place to take if the data set does not fit.
    """

    # The model's activations and the optimizer's state come after the first batch was read. Most is
    # told by what does not change: arms of a race, which have a device together, should agree.
    _SHARE, _OF_FREE = 4, 2
    share = "a quarter of it, and half of what is free of it"
    gathers_ahead = heeds_option = False
    tables: Any = None

    def __init__(self, device: Device, otherwise: Place | None = None) -> None:
        self.device, self.otherwise = device, otherwise
        self.name = f"the memory of {device.name}"
        self._reads: Any = None
        """The stream of what is read back."""
        self._written: Any = None
        """Stands behind the rows that were written last."""

    def free_bytes(self) -> int:
        """See `Place`."""
        total, free = self.device.total_bytes(), self.device.free_bytes()
        return min(self.share_of(total), free // self._OF_FREE)

    @classmethod
    def share_of(cls, memory_bytes: int) -> int:
        """Return how much may be kept in a device's memory of that size."""
        return memory_bytes // cls._SHARE

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype, device=self.device.name)

    def keep(self, rows: torch.Tensor, index: torch.Tensor, leaf: torch.Tensor) -> None:
        """See `Place`."""
        rows.index_copy_(0, index.to(rows.device), leaf.to(rows.device))
        if isinstance(self.device, Cuda):
            self._written = self.device.mark()

    def read_back(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """See `Place`; the steps that are queued are not waited for."""
        device = self.device
        if not isinstance(device, Cuda):
            return rows.index_select(0, index.to(rows.device)).cpu()
        # Beside the steps that are queued: to wait for these is to let the device run empty.
        if self._reads is None:
            self._reads = device.new_stream()
        with device.use_stream(self._reads):
            if self._written is not None:
                device.wait(self._written)
            found = rows.index_select(0, device.send(index))
            here = device.allocate_pinned(found.nbytes).view(found.dtype).view(found.shape)
            device.copy(here, found)
            device.wait_on_host(device.mark())
        return here

    def wrap_gather(self, gather: Gather) -> Gather:
        """Return `gather` for positions on the host; an epoch's order is copied once."""
        orders = _Orders(self.device)
        return lambda index: gather(orders.on_device(index))


def no_room(place: Place, size: int, *, max_bytes: int, others: int) -> str | None:
    """Return why a data set of `size` bytes may not be kept there, None if it may.

    Args:
        place: where to keep it.
        size: in bytes.
        max_bytes: for all data sets together.
        others: bytes that other data sets take there.
    """
    limit = place.free_bytes()
    if place.heeds_option:
        limit = min(limit, max_bytes - others)
    if size <= limit:
        return None
    beside = f" in addition to {others / 2**20:.0f} MiB of other datasets" if others else ""
    return (
        f"the dataset takes {size / 2**20:.0f} MiB{beside}, more than the "
        f"{max(limit, 0) / 2**20:.0f} MiB that may be used of {place.name} ({place.share})"
    )


def samples_per_read(rows: Sequence[torch.Tensor] | None, most: int) -> int:
    """Return how many samples may be read in one go beside what is held, `most` or fewer.

    Args:
        rows: what holds the samples; None while their size is not known.
        most: where memory is no matter.
    """
    if rows is None:
        return 1
    size = sum(row[0].numel() * row.element_size() for row in rows if len(row))
    return max(1, min(most, _AT_ONCE // max(1, size)))


class _Orders:
    """Takes the order of an epoch to the device once, and cuts each batch's positions out of it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._whole: torch.Tensor | None = None
        self._there: torch.Tensor | None = None

    def on_device(self, index: torch.Tensor) -> torch.Tensor:
        """Return positions, int64, shape (n,), on the device."""
        whole = index._base
        if whole is None or whole.dim() != 1 or whole.stride(0) != 1 or index.stride(0) != 1:
            return self._device.send(index)
        if whole is not self._whole:
            self._whole, self._there = whole, self._device.send(whole)
        assert self._there is not None
        begin = index.storage_offset() - whole.storage_offset()
        return self._there[begin : begin + index.numel()]
