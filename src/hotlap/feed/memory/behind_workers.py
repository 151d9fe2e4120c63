"""Keeps what a DataLoader's workers read, and serves later epochs from memory, without workers."""

import copy
import itertools
import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from torch.utils.data import _utils
from torch.utils.data import dataloader as _dataloader

from hotlap.feed.memory.main_thread import IN_BACKGROUND, is_in_background
from hotlap.feed.memory.parcel import Ear, Parcels
from hotlap.feed.memory.workers_rows import WorkersRows
from hotlap.feed.purity.in_child import can_fork
from hotlap.feed.purity.in_workers import (
    DRAWS,
    asks_for_its_worker,
    changes_when_read,
    draws_between_batches,
    why_not_in_workers,
)
from hotlap.feed.purity.reach import Reach

log = logging.getLogger("hotlap")

Make = Callable[[], Any]
"""Makes a DataLoader's iterator as torch does."""


class FitLoaders:
    """Tells of loaders whether their batches and draws are the same with workers and without."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def __call__(self, loader: Any) -> bool:
        if loader not in self._known:
            problem = _differs(loader) or draws_between_batches(loader)
            self._known[loader] = problem is None
        return self._known[loader]


class BehindWorkers:
    """Makes the iterators of the DataLoaders with workers over one data set.

    Args:
        rows: where samples are kept.
        fill_ahead: read every sample before the first batch is served; for trials.
    """

    def __init__(self, rows: WorkersRows, *, fill_ahead: bool = False) -> None:
        self.rows, self._fill_ahead = rows, fill_ahead
        self.ear = Ear()
        self._fits = FitLoaders()

    def make_iterator(self, loader: Any, make: Make) -> Any:
        """Return an iterator that reads from memory, or one that keeps what workers read."""
        if loader.num_workers == 0 or self.rows.refused is not None or not self._fits(loader):
            return make()
        # An iterator over persistent workers is made once: it finds out itself.
        if not loader.persistent_workers and self.can_serve_epoch(loader):
            return without_workers(loader, make, partial(_serve_rows, self.rows, loader))
        if self.rows.refused is not None:
            return make()
        return KeepingIterator.of(loader, _RowsOfIterator(self, loader))

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
        if self.ear.moved is not None and self.rows.refused is None:
            self.rows.refuse(f"{DRAWS}{self.ear.moved} in a worker")
        self.rows.keep_batch(batch, indices, waited_s)


class Keeping(ABC):
    """What becomes of the batches of one iterator over workers, and how it serves without them."""

    collate: Callable[[Any], Any]
    """What workers make a batch with."""

    def dataset_of(self, dataset: Any) -> Any:
        """Return what workers read."""
        return dataset

    @abstractmethod
    def can_serve_epoch(self, loader: Any, *, is_whole: bool) -> bool:
        """Look whether persistent workers may keep waiting while the next epoch is served.

        Args:
            loader: the DataLoader.
            is_whole: False if the script has broken off the epoch before.
        """

    @abstractmethod
    def fetch_of(self, iterator: Any, loader: Any) -> Callable[[Any], Any]:
        """Return what serves that epoch: `fetch(indices) -> batch`."""

    def ask(self, indices: Any) -> Any:
        """Return what a worker is asked for, in the place of the sampler's `indices`."""
        return indices

    @abstractmethod
    def refuse(self, reason: str) -> None:
        """Keep nothing from now on, for `reason`."""

    @abstractmethod
    def keep(self, batch: Any, indices: Any, waited_s: float, worker: int) -> Any:
        """Keep what a worker made of `indices`, awaited for `waited_s`; return the batch."""

    def end_epoch(  # noqa: B027 (most have nothing to do)
        self, fetch: Callable[[Any], Any], unused: Iterable[Any]
    ) -> None:
        """An epoch that `fetch` served has ended; workers would have read `unused` as well."""


class _RowsOfIterator(Keeping):
    """Small batches come as bytes, and with the word of what drew in a worker."""

    def __init__(self, behind: BehindWorkers, loader: Any) -> None:
        self._behind = behind
        self._began = behind.rows.generation
        self.collate = Parcels(loader.collate_fn, behind.ear)

    def can_serve_epoch(self, loader: Any, *, is_whole: bool) -> bool:
        # What they still read for the epoch before is thrown away.
        del is_whole
        return self._behind.can_serve_epoch(loader)

    def fetch_of(self, iterator: Any, loader: Any) -> Callable[[Any], Any]:
        return _serve_rows(self._behind.rows, loader, iterator)

    def refuse(self, reason: str) -> None:
        if self._behind.rows.refused is None:
            self._behind.rows.refuse(reason)

    def keep(self, batch: Any, indices: Any, waited_s: float, worker: int) -> Any:
        del worker
        self._behind.keep(batch, indices, waited_s, self._began)
        return batch


def _differs(loader: Any) -> str | None:
    """Return why its samples, or their order, may be others than those of a process alone."""
    if loader.worker_init_fn is not None:
        return (
            f"the DataLoader has num_workers={loader.num_workers} and a worker_init_fn, which may "
            "change its samples. Set num_workers=0 in the DataLoader, or remove worker_init_fn."
        )
    if not getattr(loader, "in_order", True):
        return (
            "the DataLoader has in_order=False, so its batches may come in another order in each "
            "run. Set in_order=True in the DataLoader, or use a plan without resident."
        )
    if not loader._auto_collation:
        return (
            "the DataLoader has batch_size=None, so resident cannot make its batches from samples. "
            "Set batch_size in the DataLoader, or use a plan without resident."
        )
    return None


class AsWorkersAsk:
    """A sampler's order, asked as workers ask: so many batches ahead, one more for each given out.

    It may draw for them, or look at what the loop has changed meanwhile.
    """

    def __init__(self, order: Iterator[Any], ahead: int) -> None:
        self._order = order
        self.asked = deque(itertools.islice(order, ahead))
        """What workers would be reading by now."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.asked:
            raise StopIteration
        indices = self.asked.popleft()
        self.asked.extend(itertools.islice(self._order, 1))
        return indices


def without_workers(
    loader: Any, make: Make, fetch_of: Callable[[Any], Callable[[Any], Any]]
) -> Any:
    """Make the iterator that the loader would have without workers: it draws as much.

    Args:
        loader: a DataLoader with workers.
        make: makes an iterator as torch does.
        fetch_of: `fetch_of(iterator) -> fetch`, which serves its batches.
    """
    workers, timeout = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        iterator = make()
    finally:
        loader.num_workers, loader.timeout = workers, timeout
    # With workers, torch asks the sampler for an order twice, and uses the second.
    order = iter(iterator._index_sampler)
    iterator._sampler_iter = AsWorkersAsk(order, workers * (loader.prefetch_factor or 1))
    # On a copy: a fetcher that held a wrapper of its own method would be a cycle.
    fetcher = copy.copy(iterator._dataset_fetcher)
    fetcher.fetch = fetch_of(iterator)
    # No thread pins: so that the time counts.
    iterator._pin_memory = False
    iterator._dataset_fetcher = fetcher
    return iterator


def finish_of(iterator: Any) -> Callable[[Any], Any] | None:
    """Return what pins a batch if the loader wants it pinned, None if not."""
    device = iterator._pin_memory_device
    pin = partial(_utils.pin_memory.pin_memory, device=device)
    return pin if iterator._pin_memory else None


def _serve_rows(rows: WorkersRows, loader: Any, iterator: Any) -> Callable[[Any], Any]:
    return rows.serve_epoch(read_of(loader), finish_of(iterator))


def read_of(loader: Any) -> Callable[[Any], Any]:
    """Return `read(indices) -> batch` of a loader, in this process."""
    return _dataloader._DatasetKind.create_fetcher(
        loader._dataset_kind,
        loader.dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
    ).fetch


class KeepingIterator(_dataloader._MultiProcessingDataLoaderIter):
    """Torch's iterator over workers, whose batches are kept as they are handed over.

    That of a loader with persistent workers serves every epoch: from memory, once all is there.
    """

    def __init__(self, loader: Any, keeping: Keeping) -> None:
        self._keeping = keeping
        self._asked: deque[Any] = deque()
        self._ahead: AsWorkersAsk | None = None
        self._from_memory: Callable[[Any], Any] | None = None
        self._asked_at = 0.0
        super().__init__(loader)

    @classmethod
    def of(cls, loader: Any, keeping: Keeping) -> "KeepingIterator":
        """Make the iterator of a loader, whose workers collate as `keeping` says."""
        loader.check_worker_number_rationality()
        collate = loader.collate_fn
        loader.collate_fn = keeping.collate
        try:
            return cls(loader, keeping)
        finally:
            loader.collate_fn = collate

    @property
    def _dataset(self) -> Any:
        return self._read

    @_dataset.setter
    def _dataset(self, dataset: Any) -> None:
        # Torch sets it before it starts the workers.
        self._read = self._keeping.dataset_of(dataset)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._asked.clear()
        if self._ahead is not None and self._from_memory is not None:
            self._keeping.end_epoch(self._from_memory, self._ahead.asked)
            self._ahead = None
        is_whole = not first_iter and self._send_idx == self._rcvd_idx
        if first_iter or not self._keeping.can_serve_epoch(loader, is_whole=is_whole):
            self._from_memory = None
            super()._reset(loader, first_iter)
            return
        # The workers keep waiting: they are needed again if the data set changes.
        _dataloader._BaseDataLoaderIter._reset(self, loader, first_iter)
        ahead = self._num_workers * (self._prefetch_factor or 1)
        self._sampler_iter = self._ahead = AsWorkersAsk(self._sampler_iter, ahead)
        self._from_memory = self._keeping.fetch_of(self, loader)

    def _next_index(self) -> Any:
        indices = super()._next_index()
        if self._from_memory is not None:
            return indices
        self._asked.append(indices)
        return self._keeping.ask(indices)

    def _next_data(self) -> Any:
        if self._from_memory is None:
            self._asked_at = time.perf_counter()
            return super()._next_data()
        return self._from_memory(self._next_index())

    def _process_data(self, data: Any, worker_idx: int) -> Any:
        indices = self._asked.popleft()
        if is_in_background():
            # Later epochs would be made there, under other random states for a while.
            self._keeping.refuse(IN_BACKGROUND)
        batch = super()._process_data(data, worker_idx)
        waited_s = time.perf_counter() - self._asked_at
        return self._keeping.keep(batch, indices, waited_s, worker_idx)


def why_not_behind_workers(
    loader: Any, own_order: bool, looked: Reach, *, may_draw: bool = False
) -> str | None:
    """Return why what this loader's workers read cannot be kept, None if nothing speaks against it.

    Args:
        loader: a DataLoader with workers.
        own_order: the engine's own.
        looked: what its data set reaches.
        may_draw: True if samples may draw random numbers.
    """
    if own_order or not can_fork():
        return (
            f"the data is read with num_workers={loader.num_workers}, but here only samples that "
            "the training process itself reads can be kept in memory. Set num_workers=0 in the "
            "DataLoader of a script, or remove `workers` from the plan of a recipe."
        )
    problem = _differs(loader)
    if problem is not None:
        return problem
    if asks_for_its_worker(looked):
        return (
            "the dataset calls `get_worker_info`, so its samples may depend on the worker that "
            "reads them. Set num_workers=0 in the DataLoader, or remove the call from the dataset."
        )
    if looked.problem is not None:
        # What prints would do so for each sample that is read below.
        return looked.problem
    problem = None if may_draw else why_not_in_workers(loader, looked)
    problem = problem or changes_when_read(loader.dataset)
    return problem or draws_between_batches(loader)
