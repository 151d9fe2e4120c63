"""Keeps what a DataLoader's workers read, and serves later epochs from memory, without workers."""

import copy
import itertools
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import _utils
from torch.utils.data import dataloader as _dataloader

from hotlap.feed.memory.parcel import Ear, Parcels
from hotlap.feed.memory.workers_rows import WorkersRows
from hotlap.feed.purity.in_child import can_fork
from hotlap.feed.purity.in_workers import (
    asks_for_its_worker,
    changes_when_read,
    draws_between_batches,
    why_not_in_workers,
)

log = logging.getLogger("hotlap")

Make = Callable[[], Any]
"""Makes a DataLoader's iterator as torch does."""


class BehindWorkers:
    """Makes the iterators of the DataLoaders with workers over one data set.

    Args:
        rows: where samples are kept.
        fill_ahead: read every sample before the first batch is served; for trials.
    """

    def __init__(self, rows: WorkersRows, *, fill_ahead: bool = False) -> None:
        self.rows, self._fill_ahead = rows, fill_ahead
        self._ear = Ear()
        self._fit: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def make_iterator(self, loader: Any, make: Make) -> Any:
        """Return an iterator that reads from memory, or one that keeps what workers read."""
        if loader.num_workers == 0 or self.rows.refused is not None or not self._fits(loader):
            return make()
        # An iterator over persistent workers is made once: it finds out itself.
        if not loader.persistent_workers and self.can_serve_epoch(loader):
            return _without_workers(loader, make, self.rows)
        if self.rows.refused is not None:
            return make()
        loader.check_worker_number_rationality()
        collate = loader.collate_fn
        # Small batches come as bytes, and with the word of what drew in a worker.
        loader.collate_fn = Parcels(collate, self._ear)
        try:
            return _KeepingIterator(loader, self)
        finally:
            loader.collate_fn = collate

    def _fits(self, loader: Any) -> bool:
        """True if this loader's samples and draws are the same with workers and without."""
        if loader not in self._fit:
            problem = _differs(loader) or draws_between_batches(loader)
            self._fit[loader] = problem is None
        return self._fit[loader]

    def can_serve_epoch(self, loader: Any) -> bool:
        """Look whether the loader's next epoch can be served from memory."""
        try:
            read = read_of(loader)
            if self._fill_ahead:
                self._fill_ahead = False
                self.rows.fill(loader.dataset, read)
            return self.rows.can_serve_epoch(loader.dataset, read)
        except Exception as error:
            # The script's own objects may do anything; its workers read as before.
            log.debug("resident refused", exc_info=True)
            self.rows.refuse(f"{type(error).__name__}: {error}")
            return False

    def keep(self, batch: Any, indices: Any, waited_s: float, began: int) -> None:
        """Keep a batch that workers have read.

        Args:
            batch: what they made of the samples.
            indices: the sampler's.
            waited_s: seconds that the script has waited for it.
            began: what `rows.generation` was when the workers began.
        """
        if began != self.rows.generation:
            return
        if self._ear.moved is not None and self.rows.refused is None:
            self.rows.refuse(f"reading a sample draws from {self._ear.moved} in a worker")
        self.rows.keep_batch(batch, indices, waited_s)


def _differs(loader: Any) -> str | None:
    """Return why its samples, or their order, may be others than those of a process alone."""
    if loader.worker_init_fn is not None:
        return (
            f"the DataLoader has num_workers={loader.num_workers} and a worker_init_fn, which may "
            "change its samples. Use num_workers=0, or remove worker_init_fn."
        )
    if not getattr(loader, "in_order", True):
        return "the DataLoader has in_order=False. Use in_order=True."
    if not loader._auto_collation:
        return "the DataLoader has batch_size=None. Give it a batch size."
    return None


class _AsWorkersAsk:
    """A sampler's order, asked as workers ask: so many batches ahead, one more for each given out.

    It may draw for them, or look at what the loop has changed meanwhile.
    """

    def __init__(self, order: Iterator[Any], ahead: int) -> None:
        self._order = order
        self._asked = deque(itertools.islice(order, ahead))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self._asked:
            raise StopIteration
        indices = self._asked.popleft()
        self._asked.extend(itertools.islice(self._order, 1))
        return indices


def _without_workers(loader: Any, make: Make, rows: WorkersRows) -> Any:
    """Make the iterator that the loader would have without workers: it draws as much."""
    workers, timeout = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        iterator = make()
    finally:
        loader.num_workers, loader.timeout = workers, timeout
    # With workers, torch asks the sampler for an order twice, and uses the second.
    order = iter(iterator._index_sampler)
    iterator._sampler_iter = _AsWorkersAsk(order, workers * (loader.prefetch_factor or 1))
    # On a copy: a fetcher that held a wrapper of its own method would be a cycle.
    fetcher = copy.copy(iterator._dataset_fetcher)
    fetcher.fetch = _serve(iterator, rows, iterator._dataset_fetcher.fetch)
    iterator._dataset_fetcher = fetcher
    return iterator


def _serve(iterator: Any, rows: WorkersRows, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what serves an epoch, and pins its batches: no thread does, so the time counts."""
    pins, iterator._pin_memory = iterator._pin_memory, False
    device = iterator._pin_memory_device
    finish = partial(_utils.pin_memory.pin_memory, device=device) if pins else None
    return rows.serve_epoch(read, finish)


def read_of(loader: Any) -> Callable[[Any], Any]:
    """Return `read(indices) -> batch` of a loader, in this process."""
    return _dataloader._DatasetKind.create_fetcher(
        loader._dataset_kind,
        loader.dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
    ).fetch


class _KeepingIterator(_dataloader._MultiProcessingDataLoaderIter):
    """Torch's iterator over workers, whose batches are kept as they are handed over.

    That of a loader with persistent workers serves every epoch: from memory, once all is there.
    """

    def __init__(self, loader: Any, behind: BehindWorkers) -> None:
        self._behind = behind
        self._asked: deque[Any] = deque()
        self._from_memory: Callable[[Any], Any] | None = None
        self._asked_at = 0.0
        self._began = behind.rows.generation
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._asked.clear()
        if first_iter or not self._behind.can_serve_epoch(loader):
            self._from_memory = None
            super()._reset(loader, first_iter)
            return
        # The workers keep waiting: they are needed again if the data set changes.
        _dataloader._BaseDataLoaderIter._reset(self, loader, first_iter)
        ahead = self._num_workers * (self._prefetch_factor or 1)
        self._sampler_iter = _AsWorkersAsk(self._sampler_iter, ahead)
        pins = self._pin_memory
        self._from_memory = _serve(self, self._behind.rows, read_of(loader))
        self._pin_memory = pins

    def _next_index(self) -> Any:
        indices = super()._next_index()
        if self._from_memory is None:
            self._asked.append(indices)
        return indices

    def _next_data(self) -> Any:
        if self._from_memory is None:
            self._asked_at = time.perf_counter()
            return super()._next_data()
        return self._from_memory(self._next_index())

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        indices = self._asked.popleft()
        batch = super()._process_data(data, worker_idx)
        waited_s = time.perf_counter() - self._asked_at
        self._behind.keep(batch, indices, waited_s, self._began)
        return batch


def why_not_behind_workers(loader: Any, own_order: bool) -> str | None:
    """Return why what this loader's workers read cannot be kept, None if nothing speaks against it.

    Args:
        loader: a DataLoader with workers.
        own_order: the engine's own.
    """
    if own_order or not can_fork():
        return f"the DataLoader has num_workers={loader.num_workers}. Use num_workers=0."
    problem = _differs(loader)
    if problem is not None:
        return problem
    if asks_for_its_worker(loader.dataset):
        return (
            "the dataset calls `get_worker_info`, so its samples may depend on the worker that "
            "reads them. Use num_workers=0, or remove the call."
        )
    problem = why_not_in_workers(loader) or changes_when_read(loader.dataset)
    return problem or draws_between_batches(loader)
