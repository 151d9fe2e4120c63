"""Storage for whole samples, which a collate function of the script's own makes batches of.

Samples may differ in shape, and hold numbers and text beside tensors and arrays. What is handed out
is a copy: a collate function, or the step, may write into it.
"""

from collections.abc import Callable
from typing import Any

import torch

from hotlap.feed.memory.place import HostPlace, no_room
from hotlap.feed.memory.row_store import bytes_of_others, share_memory
from hotlap.feed.memory.values import Unfit, are_same, check_apart, copy_of, size_of

_LOOK_EVERY = 64
"""Samples kept between two looks at the memory that is left."""
_AT_ONCE = 16 * 2**20
"""Bytes of samples that are read in one go, beside those that are held."""


class SampleStore:
    """Samples that are kept batch by batch, in each rank for itself.

    Args:
        length: samples of the data set.
        max_bytes: hold no more than this together with all other data sets.
    """

    common = None
    copies = ""

    def __init__(self, length: int, max_bytes: int) -> None:
        self.length, self.max_bytes, self.place = length, max_bytes, HostPlace()
        self.most_bytes = 0
        """Bytes held, while they were."""
        self.forget()
        share_memory(self)

    def forget(self, why: str = "") -> None:
        """Give the memory back; see `RowStore` for the reason, which does not matter here."""
        del why
        self.samples: list[Any] | None = None
        self.bytes = 0
        """Bytes held in memory."""
        self.have = torch.zeros(self.length, dtype=torch.bool, device="cpu")
        """True for each sample that is held, shape (length,)."""
        self.missing = self.length
        """Samples that are not."""
        self._since_look = _LOOK_EVERY

    @property
    def is_empty(self) -> bool:
        """True while nothing is held."""
        return self.samples is None

    def add_common(self) -> bool:
        """See `RowStore`."""
        return True

    @property
    def of_others(self) -> torch.Tensor:
        """See `RowStore`."""
        return torch.empty(0, dtype=torch.int64, device="cpu")

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
            copies = [copy_of(sample) for sample in batch]
            for sample in batch:
                check_apart(sample)
        except Unfit as error:
            return str(error)
        if self.samples is None:
            self.samples = [None] * self.length
        new = [p for p in dict.fromkeys(positions) if not self.have[p]]
        for position, sample in zip(positions, copies, strict=True):
            self.samples[position] = sample
        self.have[index] = True
        self.missing = self.length - int(self.have.sum())
        self.bytes += sum(size_of(self.samples[position]) for position in new)
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
            if not are_same(self.samples[position], sample):
                return f"sample {position} is not the same when read again"
        return None

    def gatherer(self) -> Callable[[torch.Tensor], list[Any]]:
        """Return `gather(positions) -> samples`."""
        samples = self.samples
        assert samples is not None
        return lambda index: [copy_of(samples[position]) for position in index.tolist()]

    def samples_per_read(self, most: int) -> int:
        """Return how many samples may be read in one go beside what is held, `most` or fewer."""
        held = self.length - self.missing
        if not held:
            return 1
        return max(1, min(most, _AT_ONCE // max(1, self.bytes // held)))
