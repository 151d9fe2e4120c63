"""Where the rows of a resident data set are kept: the host's memory, or the device's."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from hotlap.device import Device
from hotlap.feed.memory import available_bytes, empty_rows

Gather = Callable[[torch.Tensor], Any]
"""`gather(positions) -> batch`; the positions are where the rows are."""


class Place(Protocol):
    """What `ResidentRows` asks of a memory."""

    name: str
    share: str
    """How much of what is free may be taken, in words."""
    gathers_ahead: bool
    """True if several small batches are gathered at once: a call costs more than their bytes."""
    otherwise: "Place | None"
    """The place to take if this one is too small."""

    def free_bytes(self) -> int:
        """Return the bytes that may be taken."""
        ...

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Return rows of that shape, not yet written."""
        ...

    def keep(self, rows: torch.Tensor, index: torch.Tensor, leaf: torch.Tensor) -> None:
        """Write the rows at `index`, int64 on the host, shape (n,)."""
        ...

    def kept(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """Return the rows at `index` on the host, to be compared."""
        ...

    def gathering(self, gather: Gather) -> Gather:
        """Return `gather` for positions that are on the host."""
        ...


class HostPlace:
    """The host's memory."""

    name = "the host's memory"
    share = "half"
    gathers_ahead = True
    otherwise: Place | None = None

    def free_bytes(self) -> int:
        return available_bytes() // 2

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        return empty_rows(shape, like.dtype)

    def keep(self, rows: torch.Tensor, index: torch.Tensor, leaf: torch.Tensor) -> None:
        rows.index_copy_(0, index, leaf)

    def kept(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, index)

    def gathering(self, gather: Gather) -> Gather:
        return gather


class DevicePlace:
    """The device's memory: a batch is gathered there, and only its positions go over the bus.

    Args:
        device: with memory of its own.
        otherwise: the place to take if the data set does not fit.
    """

    # The model's activations and the optimizer's state come after the first batch was read.
    _SHARE = 4
    share = "a quarter"
    gathers_ahead = False

    def __init__(self, device: Device, otherwise: Place | None = None) -> None:
        self.device, self.otherwise = device, otherwise
        self.name = f"the memory of {device.name}"

    def free_bytes(self) -> int:
        return self.device.free_bytes() // self._SHARE

    def empty(self, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype, device=self.device.name)

    def keep(self, rows: torch.Tensor, index: torch.Tensor, leaf: torch.Tensor) -> None:
        rows.index_copy_(0, index.to(rows.device), leaf.to(rows.device))

    def kept(self, rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, index.to(rows.device)).cpu()

    def gathering(self, gather: Gather) -> Gather:
        """Return `gather` for positions on the host; an epoch's order is copied once."""
        orders = _Orders(self.device.name)
        return lambda index: gather(orders.on_device(index))


def no_room(place: Place, size: int, *, max_bytes: int, others: int) -> str | None:
    """Return why a data set of `size` bytes may not be kept there, None if it may.

    Args:
        place: where to keep it.
        size: in bytes.
        max_bytes: for all data sets together.
        others: bytes that other data sets take there.
    """
    limit = min(max_bytes - others, place.free_bytes())
    if size <= limit:
        return None
    beside = f" beside {others / 2**20:.0f} MiB of other data sets" if others else ""
    return (
        f"the data set takes {size / 2**20:.0f} MiB{beside}, more than the "
        f"{max(limit, 0) / 2**20:.0f} MiB that may be used of {place.name} (option max_mib, and "
        f"{place.share} of what is free)"
    )


class _Orders:
    """Takes the order of an epoch to the device once, and cuts each batch's positions out of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._whole: torch.Tensor | None = None
        self._there: torch.Tensor | None = None

    def on_device(self, index: torch.Tensor) -> torch.Tensor:
        """Return positions, int64, shape (n,), on the device."""
        whole = index._base
        if whole is None or whole.dim() != 1 or whole.stride(0) != 1 or index.stride(0) != 1:
            return index.to(self._name)
        if whole is not self._whole:
            self._whole, self._there = whole, whole.to(self._name)
        assert self._there is not None
        begin = index.storage_offset() - whole.storage_offset()
        return self._there[begin : begin + index.numel()]
