"""Does without a DataLoader's workers where samples are augmented: makes batches as they would.

One epoch of workers sends along what they compute of each sample before they draw; the later ones
are made in the process that trains, with the random draws that each worker would have made.
"""

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch.utils.data import _utils

from hotlap.feed.memory.behind_workers import (
    FitLoaders,
    Keeping,
    KeepingIterator,
    Make,
    finish_of,
    read_of,
    without_workers,
)
from hotlap.feed.memory.item_calls import inner_indices
from hotlap.feed.memory.item_parts import PROBED, ItemParts
from hotlap.feed.memory.main_thread import IN_BACKGROUND, is_in_background
from hotlap.feed.memory.one_thread import one_thread
from hotlap.feed.memory.received_parts import ReceivedParts
from hotlap.feed.memory.sent_parts import Continued, Note, Noted, Sender
from hotlap.feed.memory.values import are_same, copy_of
from hotlap.feed.memory.worker_streams import States, WorkerStreams
from hotlap.feed.purity.in_child import in_child

log = logging.getLogger("hotlap")

_DESCRIPTORS = "/proc/self/fd"
_TRIED = 2 * PROBED
"""Samples that are made in a child, to see what one takes without workers."""
_WORTH_IT = 0.9
_LEAST_STEPS, _MOST_STEPS = 8, 1024
"""Of which the mean is taken."""
_MOST_SENT = 4
"""Epochs whose workers send what they compute."""


class BehindDrawingWorkers:
    """Makes the iterators of the DataLoaders with workers over one data set that augments.

    Whatever fails in here ends it and says why; the script's workers read as before.

    Args:
        parts: where first parts are kept.
        max_bytes: for a worker's own.
        fill_ahead: compute every first part before the first batch is served; for trials.
    """

    def __init__(self, parts: ReceivedParts, max_bytes: int, *, fill_ahead: bool = False) -> None:
        self.parts, self._max_bytes, self._fill_ahead = parts, max_bytes, fill_ahead
        self._fits = FitLoaders()
        self._epochs = self._sent = 0
        self._is_checked = False
        self._with, self._without = Pace(), Pace()
        """Of epochs with workers that send nothing, and of those without workers."""
        self._asked: list[Any] = []
        """Indices of an epoch, of the first ones at first."""
        self._witnesses: dict[int, tuple[States, Any, Any]] = {}
        """Of a worker: its random states, the indices it was given, and the batch that it made."""

    def make_iterator(self, loader: Any, make: Make) -> Any:
        """Return an iterator without workers, or one whose workers send what they compute."""
        if loader.num_workers == 0 or self.parts.refused is not None or not self._fits(loader):
            return make()
        if not loader.persistent_workers and self.can_serve_epoch(loader, is_whole=True):
            return without_workers(loader, make, partial(self._begin_to_serve, loader))
        keeping = self._try(_PartsOfIterator, self, loader, self._max_bytes)
        if self.parts.refused is not None or keeping is None:
            return make()
        return KeepingIterator.of(loader, keeping)

    def _try(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return work(*args)
        except Exception as error:
            log.debug("resident refused", exc_info=True)
            self.parts.refuse(f"{type(error).__name__}: {error}")
            return None

    def can_serve_epoch(self, loader: Any, *, is_whole: bool) -> bool:
        """Look whether the loader's next epoch can be served without workers."""
        return bool(self._try(self._can_serve_epoch, loader, is_whole))

    def _can_serve_epoch(self, loader: Any, is_whole: bool) -> bool:
        parts, dataset = self.parts, loader.dataset
        self._compare_paces()
        if self._fill_ahead and parts.refused is None:
            self._fill_ahead, self._is_checked = False, True
            parts.fill(dataset, read_of(loader))
        if parts.refused is not None or parts.is_empty or not is_whole:
            return False
        parts.look(dataset)
        if parts.is_empty and loader.persistent_workers and parts.refused is None:
            parts.refuse("the dataset has changed, which persistent workers do not see")
        if not self._is_checked:
            if not parts.holds(set(inner_indices(dataset, self._asked))):
                return False
            self._is_checked = True
            self._ask_child(partial(self._find_difference, loader))
        return parts.refused is None and not parts.is_empty

    def epoch_begins(self, loader: Any) -> int:
        """Return how many statements' results workers are to send that are about to read an epoch.

        None in the first one: there may be no other.
        """
        return self._try(self._epoch_begins, loader) or 0

    def _epoch_begins(self, loader: Any) -> int:
        self._epochs += 1
        self._with.begin_epoch()
        if self.parts.refused is not None or self._epochs == 1:
            return 0
        self.parts.look(loader.dataset)
        if self._sent == _MOST_SENT:
            self.parts.refuse(f"{_MOST_SENT} epochs were not enough to keep what one asks for")
        if self.parts.refused is None and self.parts.statements is None:
            statements = self._ask_child(partial(self._divide, loader))
            if statements is not None:
                self.parts.divide_after(statements)
        if self.parts.refused is not None or self.parts.statements is None:
            return 0
        self._sent += 1
        self._asked.clear()
        self._witnesses.clear()
        self._is_checked = False
        return self.parts.statements

    def count(self, indices: Any) -> None:
        """Count a batch of a worker."""
        if self._sent:
            self._asked.extend(indices)
            return
        self._with.tick(len(indices))
        if len(self._asked) < _TRIED:
            self._asked.extend(indices)

    def hear(self, noted: Noted, indices: Any, worker: int) -> States | None:
        """Keep what comes along with a batch that a worker made of `indices`.

        Returns the worker's random states after it, None if they cannot be read.
        """
        note = self._try(noted.note)
        if note is None:
            return None
        self._try(self._hear, note, indices, noted.batch, worker)
        return note.after

    def _hear(self, note: Note, indices: Any, batch: Any, worker: int) -> None:
        if note.refused is not None:
            self.parts.refuse(note.refused)
        else:
            self.parts.receive(note.statements, note.parts)
        if worker not in self._witnesses and note.parts and self.parts.refused is None:
            # The script may write to the batch.
            self._witnesses[worker] = note.before, indices, copy_of(batch)

    def fetch_of(
        self, loader: Any, streams: WorkerStreams, finish: Callable[[Any], Any] | None
    ) -> Callable[[Any], Any]:
        """Return what serves an epoch, which workers would read in turns."""
        # Not the loader: it holds an iterator over persistent workers, and so this function.
        dataset, read = loader.dataset, read_of(loader)
        turns = itertools.cycle(range(loader.num_workers))

        def fetch(indices: Any) -> Any:
            if self.parts.refused is None and is_in_background():
                # The script has begun to read there: no worker is left that could.
                self.parts.refuse(IN_BACKGROUND, too_late=True)
            batch = self._make(dataset, read, streams, next(turns), indices)
            batch = batch if finish is None else finish(batch)
            self._without.tick(len(indices))
            return batch

        self._without.begin_epoch()
        return fetch

    def _begin_to_serve(self, loader: Any, iterator: Any) -> Callable[[Any], Any]:
        streams = WorkerStreams.seeded(iterator._base_seed, loader.num_workers)
        return self.fetch_of(loader, streams, finish_of(iterator))

    def _make(
        self,
        dataset: Any,
        read: Callable[[Any], Any],
        streams: WorkerStreams,
        worker: int,
        indices: Any,
    ) -> Any:
        with one_thread(), streams.of(worker):
            return self.parts.fetch(dataset, read, indices)

    def _compare_paces(self) -> None:
        """Let the workers read again if an epoch without them was slower."""
        if not self._without.is_known or not self._with.is_known:
            return
        before, now = self._with.usual * 1e6, self._without.usual * 1e6
        if now > _WORTH_IT * before:
            self.parts.refuse(
                f"a step takes {now:.1f} us per sample without the workers, {before:.1f} us with "
                "them: not faster"
            )

    def _ask_child(self, look: Callable[[], int | str | None]) -> int | None:
        """Return a number that is found in a forked child, or refuse for the words that come.

        What is opened there, this process never has.
        """
        try:
            found = in_child(look)
        except OSError as error:
            found = str(error)
        if isinstance(found, str):
            self.parts.refuse(found)
            return None
        return found

    def _divide(self, loader: Any) -> int | str:
        """Make some samples without workers; return where to divide, or what speaks against it."""
        parts, read = ItemParts(self._max_bytes), read_of(loader)
        tried, opened = self._asked[:_TRIED], _open_files()
        # Draws are looked for, then what comes before them is kept.
        for _ in range(2):
            parts.fetch(loader.dataset, read, tried)
        begin = time.perf_counter()
        parts.fetch(loader.dataset, read, tried)
        seconds = (time.perf_counter() - begin) / len(tried)
        if parts.refused is not None:
            return parts.refused
        if not parts.served or parts.statements is None:
            return f"of {len(tried)} samples, nothing that is computed before a draw can be kept"
        kept_open = sorted(what for _, what in _open_files() - opened)
        if kept_open:
            return f"reading a sample leaves '{kept_open[0]}' open, which workers would share"
        if seconds > _WORTH_IT * self._with.usual:
            return (
                f"a sample takes {seconds * 1e6:.1f} us without the workers, and a whole step "
                f"{self._with.usual * 1e6:.1f} us per sample with them: not faster"
            )
        return parts.statements

    def _find_difference(self, loader: Any) -> str | None:
        """Make batches again that workers have made; return what differs, None if nothing."""
        read = read_of(loader)
        for states, indices, batch in self._witnesses.values():
            ours = self._make(loader.dataset, read, WorkerStreams([states]), 0, indices)
            if not are_same(copy_of(ours), batch):
                return "a batch is not the same without worker processes"
        return self.parts.refused or (None if self.parts.served else "no sample was served")


class _PartsOfIterator(Keeping):
    """The workers of one iterator, and the random states that they would have without being asked.

    Args:
        behind: what keeps the parts.
        loader: the DataLoader.
        max_bytes: for a worker's own.
    """

    def __init__(self, behind: BehindDrawingWorkers, loader: Any, max_bytes: int) -> None:
        self._behind = behind
        self._left: dict[int, States] = {}
        """Of each worker, after the last batch that it has sent."""
        self._streams: WorkerStreams | None = None
        """Those of an epoch that was served, which the workers have not seen."""
        self._continued: dict[int, States] = {}
        """Where workers are to go on that have not been asked for a while."""
        self._turns = itertools.cycle(range(loader.num_workers))
        samples = _utils.fetch._MapDatasetFetcher(loader.dataset, True, list, loader.drop_last)
        self._sender = Sender(loader.dataset, samples.fetch, loader.collate_fn, max_bytes)
        self._sender.send(behind.epoch_begins(loader))
        self.collate = self._sender.collate

    def dataset_of(self, dataset: Any) -> Any:
        del dataset
        return self._sender

    def can_serve_epoch(self, loader: Any, *, is_whole: bool) -> bool:
        workers = range(loader.num_workers)
        knows_states = self._streams is not None or (is_whole and len(self._left) == len(workers))
        if self._behind.can_serve_epoch(loader, is_whole=knows_states):
            return True
        if self._streams is not None:
            self._continued = dict(enumerate(self._streams.states))
            self._streams = None
        self._turns = itertools.cycle(workers)
        self._sender.send(self._behind.epoch_begins(loader))
        return False

    def fetch_of(self, iterator: Any, loader: Any) -> Callable[[Any], Any]:
        if self._streams is None:
            self._streams = WorkerStreams([self._left[n] for n in range(loader.num_workers)])
        return self._behind.fetch_of(loader, self._streams, finish_of(iterator))

    def refuse(self, reason: str) -> None:
        if self._behind.parts.refused is None:
            self._behind.parts.refuse(reason)

    def ask(self, indices: Any) -> Any:
        states = self._continued.pop(next(self._turns), None)
        return indices if states is None else Continued(indices, states)

    def keep(self, batch: Any, indices: Any, waited_s: float, worker: int) -> Any:
        del waited_s
        if isinstance(batch, Noted):
            left = self._behind.hear(batch, indices, worker)
            if left is not None:
                self._left[worker] = left
            batch = batch.batch
        self._behind.count(indices)
        return batch

    def end_epoch(self, fetch: Callable[[Any], Any], unused: Iterable[Any]) -> None:
        for indices in list(unused):
            try:
                fetch(indices)
            except Exception:
                # Nobody would have heard of it from a worker.
                log.debug("a batch that is not waited for failed", exc_info=True)


class Pace:
    """Seconds of a step per sample, from one batch to the next."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._last: float | None = None

    def begin_epoch(self) -> None:
        """What passes between two epochs does not count."""
        self._last = None

    def tick(self, samples: int) -> None:
        """Count a batch of so many samples, which is about to be given to the script."""
        now = time.perf_counter()
        if self._last is not None and len(self._seconds) < _MOST_STEPS:
            self._seconds.append((now - self._last) / samples)
        self._last = now

    @property
    def is_known(self) -> bool:
        return len(self._seconds) >= _LEAST_STEPS

    @property
    def usual(self) -> float:
        """The mean, in seconds, without the longest tenth: workers come in bursts."""
        kept = sorted(self._seconds)[: max(1, len(self._seconds) * 9 // 10)]
        return sum(kept) / len(kept) if kept else 0.0


def _open_files() -> set[tuple[str, str]]:
    """Return the descriptors of open files and connections, and what each is."""
    found = set()
    for number in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):
            what = os.readlink(os.path.join(_DESCRIPTORS, number))
            if what.startswith(("/", "socket:")) and not what.startswith(("/dev/", "/proc/")):
                found.add((number, what))
    return found
