"""`DeviceEpoch`: an epoch out of rows on a device, read step by step or gathered there."""

from collections.abc import Iterator

import torch

from hotlap.feed.memory.epoch_fetch import EpochFetch
from hotlap.feed.memory.place import DevicePlace
from hotlap.feed.memory.resident import ResidentRows
from hotlap.feed.sources.source import Source
from hotlap.feed.sources.stream import Stream
from hotlap.feed.transfer.plain import Step, to_device


class DeviceEpoch:
    """One epoch of a source whose samples all lie on a device.

    Args:
        source: the source.
        fetch: reads a batch, through what keeps the samples.
        number: of the epoch, from 0.
        device: as torch names it.
    """

    def __init__(self, source: Source, fetch: EpochFetch, number: int, device: str) -> None:
        self._source, self._fetch, self._device = source, fetch, device
        self._rows: ResidentRows = fetch.rows
        self.order = source._order(number)
        """Positions of the epoch's samples, int64, shape (n,), on the host."""
        self._steps = source._split(self.order)
        self.batch, self.micro = source.batch, source.micro
        self.whole = len(self.order) // self.batch
        """Steps that are not cut short by the epoch's end."""

    @classmethod
    def begin(cls, source: Source | Stream, number: int, device: str) -> "DeviceEpoch | None":
        """Begin an epoch; None, with nothing begun, if its samples are not all on a device.

        Args:
            source: the source.
            number: of the epoch, from 0.
            device: as torch names it.
        """
        if type(source) is not Source or source.world > 1:
            return None
        rows = source.notes.get("resident")
        if source.num_workers or source.reader_threads or not source.stages.is_empty:
            return None
        if not isinstance(rows, ResidentRows) or not isinstance(rows.place, DevicePlace):
            return None
        # Another technique may stand in front of the rows.
        if rows.refused is not None or rows._held.missing or len(source.wraps) != 1:
            return None
        source._begin(number)
        fetch = source.apply_wraps(source._read)
        assert isinstance(fetch, EpochFetch), "rows are kept, and something else serves them"
        return cls(source, fetch, number, device)

    def __len__(self) -> int:
        """Return the steps of the epoch."""
        return len(self._steps)

    @property
    def may_gather(self) -> bool:
        """True if the next steps' batches may be gathered without another look at the samples."""
        return self._fetch.may_gather

    @property
    def generation(self) -> int:
        """Another number once the samples lie elsewhere."""
        return self._rows.generation

    def gather_steps(self, positions: torch.Tensor) -> Iterator[Step]:
        """Gather whole steps, of positions on the device; give of each what `read` returns."""
        return self._fetch.gather_steps(positions, self.batch, self.micro)

    def count_gathered(self, steps: int) -> None:
        """Count whole steps whose batches were gathered with `gather_steps`."""
        parts = -(-self.batch // self.micro)
        self._fetch.count_gathered(steps * parts, steps * self.batch)

    def read(self, step: int) -> Step:
        """Return the (samples, micro-batch) of a step, from 0, on the device."""
        given = [(positions.numel(), self._fetch(positions)) for positions in self._steps[step]]
        self._source._put_back()
        return [(samples, to_device(batch, self._device)) for samples, batch in given]
