"""`EpochFetch`: called in place of reading for one epoch, to serve the rows of `ResidentRows`."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from hotlap.feed.memory.gather import gather_steps


class EpochFetch:
    """One epoch over a `ResidentRows`: what is called in place of `read`."""

    def __init__(self, rows: Any, dataset: Any, read: Callable[[Any], Any]) -> None:
        self.rows, self.dataset, self.read = rows, dataset, read
        self._fetch = partial(rows.fetch, dataset, read)
        self.serve = partial(rows.serve, dataset, read)
        """See `ResidentRows.serve`."""

    def __call__(self, indices: Any) -> Any:
        return self._fetch(indices)

    @property
    def may_gather(self) -> bool:
        """True if the next batches may be gathered out of the rows without another look."""
        rows = self.rows
        is_served = rows.refused is None and rows.is_on and rows._quick is not None
        return is_served and not rows._is_due()

    def gather_steps(
        self, positions: torch.Tensor, batch: int, micro: int
    ) -> Iterator[list[tuple[int, Any]]]:
        """Gather whole steps of `batch` samples, for positions that are where the rows are.

        It is right for as long as the rows' `generation` stays what it is.
        """
        held = self.rows._held
        return gather_steps(held.spec, held.rows, positions, batch, micro)

    def count_gathered(self, batches: int, samples: int) -> None:
        """Count batches that somebody has gathered with `gather_steps`."""
        self.rows.served += batches
        self.rows._since_check += samples
