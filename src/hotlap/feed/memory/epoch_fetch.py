"""Replaces a DataLoader iterator's fetch for one epoch, and serves samples from memory."""

from collections.abc import Callable
from functools import partial
from typing import Any


class EpochFetch:
    """One epoch over a `ResidentRows`: what is called in place of `read`."""

    def __init__(self, rows: Any, dataset: Any, read: Callable[[Any], Any]) -> None:
        self.dataset, self.read = dataset, read
        self._fetch = partial(rows.fetch, dataset, read)
        self.serve = partial(rows.serve, dataset, read)
        """See `ResidentRows.serve`."""

    def __call__(self, indices: Any) -> Any:
        return self._fetch(indices)
