"""`ResidentRows`: keeps samples as the first epoch reads them, and serves later epochs from memory.

Nothing is read ahead and nothing twice, so a run of one epoch pays nothing. The batch that comes
out is the one that default collation would have made of the same indices, bit for bit; or, for a
collate function of the script's own, the list of samples that it would have been given.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from hotlap import rng
from hotlap.errors import DIFFERS
from hotlap.feed.memory import rereading
from hotlap.feed.memory.epoch_fetch import EpochFetch
from hotlap.feed.memory.gather import BatchGatherer
from hotlap.feed.memory.main_thread import IN_BACKGROUND, home_thread, is_in_background
from hotlap.feed.memory.one_thread import filling_threads
from hotlap.feed.memory.place import HostPlace, Place
from hotlap.feed.memory.row_store import RowStore
from hotlap.feed.memory.sample_store import SampleStore
from hotlap.feed.purity.first_times import FirstTimes
from hotlap.feed.purity.reach import Reach, name_of_change

log = logging.getLogger("hotlap")

REREAD_AT_FIRST = 256
"""Samples read again under other random states before the first batch is served from memory."""
REREAD_PER_EPOCH = 16
"""Samples read again at the start of every later epoch."""
REREAD_EVERY = 65536
"""Samples served between two looks, at some of the current batch."""
_REREAD_AT_ONCE = 16
_FILL_CHUNK = 256
_WORTH_IT = 0.9
_MOST_CHANGES = 8

Read = Callable[[Any], Any]
"""`read(indices) -> batch`, by the script's own data set and collation."""


class ResidentRows:
    """The rows of one map-style data set, which it does not keep alive.

    Whatever fails in here refuses the data set and says why; the script gets its batch as if
    nobody had looked on. What the data set itself raises goes to the script.

    Args:
        dataset: the data set, for its length and to see whether it may be kept.
        max_bytes: refuse, rather than hold more than this together with all other data sets.
        own_order: the indices are hotlap's own: whole numbers in a tensor, and in range.
        place: where the rows are kept; the host's memory if None.
        whole_samples: `read` returns a list of samples in place of a collated batch.
    """

    behind_workers = False
    rereads_fewer = 1  # By how much fewer samples are read again than elsewhere.

    def __init__(
        self,
        dataset: Any,
        max_bytes: int,
        *,
        own_order: bool = False,
        place: Place | None = None,
        whole_samples: bool = False,
    ) -> None:
        self._own_order = own_order
        self._home = home_thread(own_order=own_order)
        self.length = len(dataset)
        self._held: RowStore | SampleStore = (
            SampleStore(self.length, max_bytes)
            if whole_samples
            else RowStore(self.length, max_bytes, place or HostPlace())
        )
        self.served = 0
        """Batches served from memory."""
        self.read_batches = 0
        self.completed = 0
        """Batches of both: some of their samples were read, the others were held."""
        self.refused: str | None = None
        self.draws = False
        """True if that is so because reading a sample draws random numbers."""
        self.is_on = True
        """False while batches are read as if nobody kept the samples, see `Technique.live`."""
        self._is_due_to_look = False
        self.generation = 0
        """Times that the samples were thrown away."""
        self.changed: str | None = None
        """What had changed when the samples were last thrown away, to be read again."""
        self._has_compared = False  # Samples that another rank has read with this one's own.
        self._forget()
        self._since_check = 0
        self._restless = 0
        self._is_settled = False
        self._read_s, self._serve_s = FirstTimes(), FirstTimes()
        self._reach = Reach(dataset)
        if self._reach.problem is not None:
            self.refuse(self._reach.problem)

    @property
    def bytes(self) -> int:
        """Bytes held in memory."""
        return self._held.bytes

    @property
    def held(self) -> list[Any]:
        """The tensors that hold whole samples, one row each."""
        return list(getattr(self._held, "rows", None) or ())

    @property
    def most_bytes(self) -> int:
        """Bytes held, while they were."""
        return self._held.most_bytes

    @property
    def is_complete(self) -> bool:
        """True if every sample is held, and batches have been served."""
        return self._held.missing == 0 and self.served > 0

    @property
    def copies(self) -> str:
        """What is said of the copies that several ranks have; empty of one that is alone."""
        return self._held.copies

    @property
    def place(self) -> Place:
        """Where the rows are kept."""
        return self._held.place

    def bind(self, dataset: Any, read: Read) -> Read:
        """Start an epoch over `read(indices) -> batch`; return the function to call instead."""
        # While it is off, an epoch must cost what it costs without it.
        self._is_due_to_look = self.refused is None and not self.is_on
        if self.refused is None and self.is_on:
            self._call_or_refuse(self._look_again, dataset, read)
        return EpochFetch(self, dataset, read)

    def _look_again(self, dataset: Any, read: Read) -> None:
        if len(dataset) != self.length:
            self.refuse(f"the dataset's length changed from {self.length} to {len(dataset)}")
            return
        old, self._reach = self._reach, Reach(dataset)
        if self._reach.problem is not None:
            self.refuse(self._reach.problem)
        elif self._reach.marks != old.marks:
            self.changed = name_of_change(old, self._reach)
            log.info("resident: %s changed, reading the samples again", self.changed)
            self._forget(f"{self.changed} changed")
        elif not self._held.add_common():
            self._part("the dataset of another rank gives other samples")
        if self.refused is None and self._checked and not self._held.is_empty:
            self._since_check = 0
            self._reread(read, REREAD_PER_EPOCH)

    def _look_in_between(self, dataset: Any, read: Read) -> None:
        """Something was rebound in the middle of an epoch: what is held may be stale."""
        self._restless += 1
        if self._restless > _MOST_CHANGES:
            self.refuse(f"{self._reach.watched.find_change()} changes repeatedly during an epoch")
            return
        self._forget(f"{self._reach.watched.find_change()} changed")
        self._look_again(dataset, read)

    def fetch(self, dataset: Any, read: Read, indices: Any) -> Any:
        """Return the collated batch of the sampler's `indices`."""
        if self.refused is None and is_in_background(self._home):
            self.refuse(IN_BACKGROUND)
        if self.refused is not None or not self.is_on:
            return read(indices)
        if self._is_due_to_look:
            self._is_due_to_look = False
            self._call_or_refuse(self._look_again, dataset, read)
        if self._reach.watched.find_change() is not None:
            self._call_or_refuse(self._look_in_between, dataset, read)
        if self._quick is not None and self._since_check < REREAD_EVERY:
            self._since_check += indices.numel()
            self.served += 1
            return self._quick(indices)
        index = None if self.refused is not None else self._call_or_refuse(self._positions, indices)
        if index is None:
            return read(indices)
        missing = rereading.missing_of(self._held, index)
        if len(missing) and not self._complete(dataset, read, index, missing):
            return self._read_and_keep(dataset, read, indices, index)
        begin = time.perf_counter()
        batch = self._call_or_refuse(self._serve, read, index)
        self._serve_s.add((time.perf_counter() - begin) / len(index))
        if self._serve_s.count == FirstTimes.ENOUGH:
            self._call_or_refuse(self._compare_times)
        return read(indices) if batch is None else batch

    def _complete(self, dataset: Any, read: Read, index: Any, missing: torch.Tensor) -> bool:
        """Read what is missing of a batch; False if the whole batch is to be read."""
        if len(missing) == len(index):
            return False
        states = rng.global_random_states()
        self._read_and_keep(dataset, read, missing.tolist(), missing)
        if self.refused is not None:
            # The whole batch is read now, as a plain run would: with the same draws.
            rng.restore(states)
            return False
        self.completed += 1
        return True

    def serve(self, dataset: Any, read: Read, order: torch.Tensor, batch: int) -> Iterator[Any]:
        """Give the batches of `order`, what is small in them gathered for several at once.

        Args:
            dataset: the data set.
            read: see `bind`.
            order: positions, int64, shape (n,).
            batch: positions of a batch; the last one may have fewer.
        """
        parts, done = order.split(batch) if len(order) else (), 0
        several: BatchGatherer | None = None
        while done < len(parts):
            quick = self._quick
            if quick is None or self._is_due():
                several = None
                yield self.fetch(dataset, read, parts[done])
                done += 1
                continue
            if several is None:
                assert isinstance(self._held, RowStore) and self._held.rows is not None
                several = BatchGatherer(self._held.spec, self._held.rows, batch)
            # The last batch of an epoch may not be whole.
            is_ahead = several.count and self.place.gathers_ahead and len(parts[done]) == batch
            ahead = several.gather(order, done * batch) if is_ahead else map(quick, parts[done:])
            for one in ahead:
                self.served += 1
                done += 1
                self._since_check += batch
                yield one
                # The moment before the next batch is wanted.
                if self._quick is not quick or self._is_due():
                    break

    def _is_due(self) -> bool:
        """True if the data set is to be looked at before another batch is served."""
        return self._since_check >= REREAD_EVERY or self._reach.watched.find_change() is not None

    def _compare_times(self) -> None:
        read, served = self._read_s.usual * 1e6, self._serve_s.usual * 1e6
        if served > _WORTH_IT * read:
            self._is_not_faster(f"{read:.1f} us, from memory {served:.1f} us: not faster")

    def _is_not_faster(self, times: str) -> None:
        self.refuse(f"reading a sample takes {times}")

    def _call_or_refuse(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return work(*args)
        except Exception as error:
            log.debug("resident refused", exc_info=True)
            self.refuse(f"{type(error).__name__}: {error}")
            return None

    def _positions(self, indices: Any) -> torch.Tensor | None:
        """Return the sampler's indices as a tensor; refuse if rows cannot be named by them."""
        index = rereading.positions_of(indices, self.length)
        if index is None:
            last = self.length - 1
            self.refuse(f"the sampler yields something other than indices from 0 to {last}")
        return index

    def _serve(self, read: Read, index: torch.Tensor) -> Any:
        """Return the batch from memory, None if a look at the data set says not to."""
        if not self._has_compared and rereading.has_of_others(self._held, index):
            self._compare_with_others(read)
        if not self._checked and not self._held.is_empty:
            self._checked = True
            self._reread(read, REREAD_AT_FIRST)
        if self._since_check >= REREAD_EVERY and self.refused is None:
            self._since_check = 0
            self._compare_with_own(read, index[:_REREAD_AT_ONCE])
        if self.refused is not None or self._held.is_empty:
            return None
        gather = self._held.gatherer()
        if self._held.missing == 0 and self._own_order:
            self._quick = gather
        self._since_check += index.numel()
        self.served += 1
        return gather(index)

    def fill(self, dataset: Any, read: Read) -> None:
        """Read every sample that is still missing, at once. Only trials do this."""
        states = rng.global_random_states()
        with filling_threads(None if self.behind_workers else lambda: read([0])):
            for chunk in rereading.missing_chunks(self._held, _FILL_CHUNK):
                if self.refused is not None:
                    break
                try:
                    self._read_and_keep(dataset, read, chunk.tolist(), chunk)
                except Exception:
                    # A sample that the script's sampler may never ask for.
                    log.info("resident: not all samples could be read in advance", exc_info=True)
                    break
        rng.restore(states)

    def refuse(self, reason: str, *, too_late: bool = False) -> None:
        """Stop serving from memory, for `reason`; `too_late` if what was served may be wrong."""
        if self.served and too_late:
            reason = (
                f"{reason}. This was detected after {self.served} batches had been served from "
                f"memory: {DIFFERS} from a plain run. Use this dataset without `resident`"
            )
        self.refused, self._reach = reason, Reach(None)  # What it watches it keeps alive.
        self._forget()

    def drop(self) -> None:
        """Give the memory back: the script has dropped the data set."""
        self._forget()
        self._reach = Reach(None)

    def _forget(self, why: str = "") -> None:
        self._held.forget(why)
        self.generation += 1
        self._checked = False
        self._quick: Callable[[torch.Tensor], Any] | None = None

    def _read_and_keep(self, dataset: Any, read: Read, indices: Any, index: torch.Tensor) -> Any:
        before = rng.global_random_states()
        begin = time.perf_counter()
        batch = read(indices)
        self._read_s.add((time.perf_counter() - begin) / len(index))
        self.read_batches += 1
        self._call_or_refuse(self._settle, dataset)
        if self.refused is None:
            self._call_or_refuse(self._keep_batch, before, batch, index)
        return batch

    def _settle(self, dataset: Any) -> None:
        """See whether reading changes the data set; the first batch may, as files are opened."""
        changed = self._reach.watched.find_rebinding()
        if changed is None:
            self._reach.watched.accept()
            return
        if self._is_settled:
            self.refuse(f"reading a sample changes {changed}")
            return
        self._is_settled = True
        self._reach = Reach(dataset)
        if self._reach.problem is not None:
            self.refuse(self._reach.problem)

    def _keep_batch(self, before: Any, batch: Any, index: torch.Tensor) -> None:
        drawn = rng.generator_that_advanced(before)
        if drawn is not None:
            self.draws = True
            self.refuse(f"reading a sample draws from {drawn}")
            return
        reason = self._held.keep(batch, index)
        if reason is not None:
            self.refuse(reason)

    def _reread(self, read: Read, count: int) -> None:
        # Not always the same samples: every epoch starts one further on.
        there = rereading.held_positions(self._held, of_others=self._has_compared)
        some = rereading.spread_over(there, count // self.rereads_fewer, self.served)
        self._compare_with_own(read, some)

    def _compare_with_own(self, read: Read, index: torch.Tensor) -> None:
        differs = self._find_difference(read, index)
        if differs is not None:
            self.refuse(differs, too_late=True)

    def _compare_with_others(self, read: Read) -> None:
        """Compare what other ranks have read with this one's own, before any of it is served."""
        if self._has_compared or self._held.common is None:
            return
        some = rereading.spread_over(self._held.of_others, REREAD_AT_FIRST // self.rereads_fewer, 0)
        differs = self._find_difference(read, some) if len(some) else None
        if differs is not None:
            self._held.common.note_difference()
            self._part(f"the datasets of the ranks differ ({differs})")
        self._has_compared = self.refused is None and differs is None and len(some) > 0

    def _part(self, why: str) -> None:
        # From now on this rank keeps a copy of its own, unless others' samples were served.
        self.refuse(why, too_late=True) if self._has_compared else self._forget(why)

    def _find_difference(self, read: Read, wanted: torch.Tensor) -> str | None:
        """Return what differs of samples that are held when they are read again, if anything."""
        differs = None
        for part in wanted.split(self._held.samples_per_read(_FILL_CHUNK)):
            if self.refused is None and differs is None:
                differs = self._read_again(read, part)
        return differs

    def _read_again(self, read: Read, index: torch.Tensor) -> str | None:
        if is_in_background(self._home):
            self.refuse(IN_BACKGROUND)
            return None
        differs = rereading.find_difference(self._held, read, index)
        self._reach.watched.accept()
        return differs
