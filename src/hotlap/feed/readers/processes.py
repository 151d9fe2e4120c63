"""Worker processes that read, transform and collate samples, and persist across epochs.

Starting workers takes as long as reading some hundred small images, so those of the training data
go on with the next epoch: its order is known beforehand, and they read its first batches while the
last ones of this epoch are trained on. They are started anew where the data set was changed.
"""

from collections.abc import Iterator
from itertools import chain, count
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.compat import end_workers
from hotlap.errors import RunError
from hotlap.feed.memory.parcel import Parcels
from hotlap.feed.purity.reach import Reach, try_to_look
from hotlap.feed.readers.worker_signals import leave_signals_to_parent, starting_workers
from hotlap.feed.samples.order import derive_seed
from hotlap.feed.samples.reading import explain_collation_error
from hotlap.feed.samples.transform import Staged, identity_collate

Step = list[tuple[int, Any]]
"""The (samples, micro-batch) of one step."""


class WorkerProcesses:
    """The processes that read for one `Source`.

    Args:
        source: for its order, data set, stages, number of workers and notes.
        epochs: they outlive an epoch until this many have passed; None to end with each.
    """

    def __init__(self, source: Any, epochs: int | None) -> None:
        self.source, self.epochs = source, epochs
        self._batches: Any = None
        self._next_epoch = 0
        self._reach: Reach | None = None

    def epoch(self, number: int, first: int) -> Iterator[Step]:
        """Give, step by step, the (samples, micro-batch) of an epoch, from step `first` on."""
        steps = self.source.steps(number)[first:]
        if first or number != self._next_epoch or self._batches is None or self._has_changed():
            self._stop()
            self._start(number, first)
        self._next_epoch = number + 1
        is_whole = False
        try:
            for micros in steps:
                yield [(len(positions), self._next()) for positions in micros]
            is_whole = True
        finally:
            if not is_whole or self.epochs is None or self._next_epoch >= self.epochs:
                self._stop()

    def _start(self, number: int, first: int) -> None:
        source = self.source
        # A worker cannot tell this process that a sample draws, so there each one is seeded.
        source.samples.draws = True
        self._reach = try_to_look(source.dataset) if self.epochs is not None else None
        is_plain = source.stages.is_empty
        read = source.samples if is_plain else Staged(source.stages)
        loader = DataLoader(
            _InEpoch(read, source.samples),
            batch_sampler=_Wanted(source, number, first, self.epochs),  # pyright: ignore[reportArgumentType]
            num_workers=source.num_workers,
            prefetch_factor=source.prefetch_factor,
            collate_fn=Parcels(source.collate_fn if is_plain else identity_collate),
            # Not from the global one: the model's own draws must not depend on who reads.
            generator=torch.Generator().manual_seed(derive_seed(source.seed, number)),
        )
        with starting_workers():
            self._batches = iter(loader)
        source.notes["worker_processes"] = source.num_workers

    def _has_changed(self) -> bool:
        """True if the data set is not what the workers have, or nobody can tell."""
        old, new = self._reach, try_to_look(self.source.dataset)
        self._reach = new
        if old is None or new is None or old.problem is not None or new.problem is not None:
            return True
        return old.marks != new.marks

    def _stop(self) -> None:
        # A traceback that is kept holds the iterator, and so its processes.
        batches, self._batches = self._batches, None
        if batches is not None:
            end_workers(batches)

    def _next(self) -> Any:
        try:
            for batch in self._batches:
                return batch
        except (TypeError, RuntimeError) as error:
            told = explain_collation_error(error)
            if told is error:
                raise
            raise told from error
        raise RunError(
            "the dataset's `__getitem__` raised StopIteration, so the worker processes ended "
            "before the end of the epoch. Return a sample for every index below `len(dataset)`; to "
            "report a faulty sample, raise another exception, such as ValueError."
        )


class _Wanted:
    """What to read next: (epoch, position) of each sample of one micro-batch after another."""

    def __init__(self, source: Any, number: int, first: int, epochs: int | None) -> None:
        self.source, self.number, self.first = source, number, first
        self.end = number + 1 if epochs is None else max(epochs, number + 1)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch in count(self.number):
            if epoch == self.end:
                return
            steps = self.source.steps(epoch)
            begun = steps[self.first :] if epoch == self.number else steps
            for micro in chain.from_iterable(begun):
                yield [(epoch, position) for position in micro.tolist()]


class _InEpoch(Dataset[Any]):
    """In a worker: a data set that is told with each batch which epoch it is."""

    def __init__(self, dataset: Any, samples: Any) -> None:
        self.dataset, self.samples = dataset, samples

    def __getitem__(self, wanted: tuple[int, int]) -> Any:
        return self.__getitems__([wanted])

    def __getitems__(self, wanted: list[tuple[int, int]]) -> Any:
        leave_signals_to_parent()
        self.samples.epoch = wanted[0][0]
        positions = [position for _, position in wanted]
        together = getattr(self.dataset, "__getitems__", None)
        if together is not None:
            return together(positions)
        return [self.dataset[position] for position in positions]
