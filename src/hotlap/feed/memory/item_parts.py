"""Keeps what a data set computes of a sample before it draws random numbers.

A data set that augments gives other samples in each epoch; what it reads and decodes before that is
the same. The code of its `__getitem__` is divided there: the first part runs once for each index,
the rest for each sample, with the random draws of a plain run.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hotlap import rng
from hotlap.errors import DIFFERS
from hotlap.feed.memory.both_ways import find_other_sample
from hotlap.feed.memory.item_calls import (
    Item,
    inner_indices,
    innermost,
    items_made_by,
    key_of,
)
from hotlap.feed.memory.main_thread import IN_BACKGROUND, home_thread, is_in_background
from hotlap.feed.memory.one_thread import filling_threads
from hotlap.feed.memory.place import HostPlace
from hotlap.feed.memory.row_store import bytes_of_others, share_memory
from hotlap.feed.memory.values import Unfit, check_apart, copy_of, size_of
from hotlap.feed.purity.first_times import FirstTimes
from hotlap.feed.purity.item_code import CannotDivide, Divided, ItemCode
from hotlap.feed.purity.reach import Reach, name_of_change

log = logging.getLogger("hotlap")

PROBED = 16
"""Samples whose draws are looked for after every statement."""
VERIFIED_AT_FIRST = 64
"""Samples made in both ways before the first one is served."""
VERIFIED_PER_EPOCH = 8
_WORTH_IT = 0.5
_LOOK_EVERY = 64
"""Samples kept between two looks at the memory that is left."""
_SPARE_BYTES = 256 * 2**20
_MOST_CHANGES = 8

Read = Callable[[Any], Any]


class ItemParts:
    """The first parts of the samples of one data set, which it does not keep alive.

    Whatever fails in here ends it and says why; the script gets its samples as if nobody had looked
    on. What the data set itself raises goes to the script.

    Args:
        max_bytes: hold no more than this together with all other data sets; what is beyond it is
            computed each time.
        own_order: the samples are those of hotlap's own training.
    """

    place = HostPlace()
    in_workers = False  # True if a plain run computes them in worker processes.

    def __init__(self, max_bytes: int, *, own_order: bool = False) -> None:
        self._max_bytes = max_bytes
        self._home = home_thread(own_order=own_order)
        self.refused: str | None = None
        self.is_on = True
        """False while samples are read as if nobody kept anything, see `Technique.live`."""
        self.served = 0
        """Samples of which the first part came from memory."""
        self.computed = 0
        """Samples of which it was computed."""
        self.most_bytes = 0
        """Bytes held, while they were."""
        self.is_in_use = False
        """True once a sample was asked for by an index that can be remembered."""
        self._asked = 0
        """Samples that were asked for, from memory or not."""
        self._length = 0
        self._name = ""
        self._code: ItemCode | None = None
        self._reach: Reach | None = None
        self._changes = 0
        self._is_settled = False
        self._is_due_to_look = True
        self._first_s, self._copy_s = FirstTimes(), FirstTimes()
        self._restart()
        share_memory(self)

    def _restart(self) -> None:
        """Look for the first draw again; nothing is held."""
        self._probed = 0
        self._is_verified = False
        self._after: int | None = None
        """Statements before the division, None while draws are looked for."""
        self._divided: Divided | None = None
        self._fresh: dict[Any, tuple[Any, ...]] = {}
        """What was computed for the batch that is being read."""
        self._forget()

    def _forget(self) -> None:
        self._held: dict[Any, tuple[Any, ...]] = {}
        """By `key_of` the index."""
        self.bytes = 0
        """Bytes held in memory."""
        self._limit: int | None = None
        self._is_full = False

    @property
    def statements(self) -> int | None:
        """How many stand before the first draw, None while that is looked for."""
        return None if self._divided is None else self._after

    @property
    def is_complete(self) -> bool:
        """True if everything is held that there is room for, and samples have been served."""
        return self.served > 0 and (self._is_full or len(self._held) >= self._length)

    @property
    def words(self) -> str:
        """What was done, for a proof."""
        return (
            f"{self._name} draws random numbers: what it computes before was served from "
            f"{self.most_bytes / 2**20:.0f} MiB of memory for {self.served} samples, and computed "
            f"for {self.computed}"
        )

    def begin_epoch(self) -> None:
        """Look at the data set before the next batch."""
        self._is_due_to_look = True

    def drop(self) -> None:
        """Give the memory back: the script has dropped the data set."""
        self._restart()
        self._code = self._reach = None

    def fetch(self, dataset: Any, read: Read, indices: Any) -> Any:
        """Return `read(indices)`, with the first parts of its samples from memory."""
        if self.refused is None and is_in_background(self._home):
            self._refuse(IN_BACKGROUND)
        if self.refused is not None or not self.is_on:
            return read(indices)
        if self._is_due_to_look or (self._reach and self._reach.watched.find_change() is not None):
            self._try(self._look, dataset)
        wanted = self._try(inner_indices, dataset, indices)
        if self.refused is not None or wanted is None:
            return read(indices)
        self.is_in_use = self.is_in_use or bool(wanted)
        inner, before = innermost(dataset), (self._asked, self.served)
        self._prepare(inner, wanted)
        with items_made_by(inner, self._item):
            batch = read(indices)
        self._fresh.clear()
        if self._asked == before[0]:
            self._refuse(f"{self._name} was not called for a sample")
        elif self.refused is None and self.served == before[1]:
            self._try(self._settle, inner)
        return batch

    def fill(self, dataset: Any, read: Read) -> None:
        """Compute every first part that is still missing, at once. Only trials do this."""
        states = rng.global_random_states()
        try:
            self._is_due_to_look = True
            self.fetch(dataset, read, list(range(min(PROBED, len(dataset)))))
            with filling_threads(None if self.in_workers else lambda: read([0])):
                for start in range(0, len(dataset), _LOOK_EVERY):
                    part = range(start, min(start + _LOOK_EVERY, len(dataset)))
                    self._prepare(innermost(dataset), inner_indices(dataset, part))
                    self._fresh.clear()
        except Exception:
            # A sample that the script's sampler may never ask for.
            log.info("resident: not all samples could be computed in advance", exc_info=True)
        finally:
            rng.restore(states)

    def _try(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return work(*args)
        except Exception as error:
            log.debug("resident refused", exc_info=True)
            self._refuse(f"{type(error).__name__}: {error}")
            return None

    def _refuse(self, reason: str, *, too_late: bool = False) -> None:
        if self.served and too_late:
            reason = (
                f"{reason}. This was detected after {self.served} samples had been served from "
                f"memory: {DIFFERS} from a plain run. Use this dataset without `resident`"
            )
        self.refused, self._reach = reason, None  # What it watches it keeps alive.
        self._forget()

    def _look(self, dataset: Any) -> None:
        """Look for what has changed since the last look, and verify some of what is held."""
        is_epoch, self._is_due_to_look = self._is_due_to_look, False
        self._length, dataset = len(dataset), innermost(dataset)
        kind = type(dataset)
        self._name = f"`{kind.__qualname__}.__getitem__`"
        old, self._reach = self._reach, Reach(dataset)
        if self._reach.problem is not None:
            self._refuse(self._reach.problem)
            return
        if self._code is None:
            try:
                self._code = ItemCode(kind.__getitem__, dataset)
            except CannotDivide as error:
                self._refuse(str(error))
                return
        elif old is not None and old.marks != self._reach.marks:
            self._has_changed(name_of_change(old, self._reach), is_epoch=is_epoch)
        if is_epoch and self._is_verified and self._held:
            some = _spread_over(list(self._held), VERIFIED_PER_EPOCH, self.served)
            self._verify(dataset, {key: self._held[key] for key in some})

    def _has_changed(self, what: str, *, is_epoch: bool) -> None:
        """The data set is another one than at the last look.

        Args:
            what: has changed.
            is_epoch: True before the first batch of an epoch.
        """
        del what, is_epoch
        self._begin_again("the dataset changes repeatedly")

    def _begin_again(self, reason: str, samples: int = PROBED) -> None:
        """Throw away what is held, and look for the first draw again; not for ever.

        Args:
            reason: what is wrong if that happens repeatedly.
            samples: in how many of them to look.
        """
        self._changes += 1
        if self._changes > _MOST_CHANGES:
            self._refuse(reason)
        self._restart()
        self._probed = min(0, PROBED - samples)

    def _settle(self, dataset: Any) -> None:
        """See whether reading changes the data set; the first batch may, as files are opened."""
        assert self._reach is not None
        changed = self._reach.watched.find_rebinding()
        if changed is None:
            self._reach.watched.accept()
        elif self._is_settled:
            self._refuse(f"reading a sample changes {changed}")
        else:
            self._is_settled, self._reach = True, Reach(dataset)
            if self._reach.problem is not None:
                self._refuse(self._reach.problem)

    def _item(self, dataset: Any, index: Any, plain: Item) -> Any:
        """Make one sample, in the place of `__getitem__`."""
        self._asked += 1
        key = key_of(index)
        if key is None or self.refused is not None:
            return plain(dataset, index)
        if self._divided is None:
            return self._probe(dataset, index)
        values = self._fresh.pop(key, None)
        held = self._held.get(key) if values is None else None
        if held is not None:
            values = self._try(self._copied, held)
            self.served += values is not None
        if values is None:
            return plain(dataset, index)
        return self._divided.rest(dataset, index, *values)

    def _copied(self, held: tuple[Any, ...]) -> tuple[Any, ...] | None:
        begin = time.perf_counter()
        values = copy_of(held)
        self._copy_s.add(time.perf_counter() - begin)
        if self._copy_s.count == FirstTimes.ENOUGH and self._first_s.count:
            copying, computing = self._copy_s.usual * 1e6, self._first_s.usual * 1e6
            if copying > _WORTH_IT * computing:
                self._refuse(
                    f"what {self._name} computes before it draws takes {computing:.1f} us, a copy "
                    f"{copying:.1f} us: not faster"
                )
                return None
        return values

    def _probe(self, dataset: Any, index: Any) -> Any:
        """Return a sample, and look which statement is the first one that draws."""
        assert self._code is not None
        states, drawn_at = rng.global_random_states(), self._code.most

        def mark(number: int) -> None:
            nonlocal drawn_at
            if number <= drawn_at and rng.generator_that_advanced(states) is not None:
                drawn_at = number - 1

        sample = self._code.marked(mark)(dataset, index)
        self._probed += 1
        self._after = min(drawn_at, self._code.most if self._after is None else self._after)
        if self._probed >= PROBED or self._after == 0:
            self._try(self._divide)
        return sample

    def _divide(self) -> None:
        assert self._code is not None and self._after is not None
        if self._after == 0:
            self._refuse(f"{self._name} draws random numbers in its first statement")
            return
        self._divided, self._is_verified = self._code.divide(self._after), False

    def _prepare(self, dataset: Any, wanted: Mapping[Any, Any]) -> None:
        """Compute the first parts that a batch still needs, and keep them if they can be.

        They are computed one after another, so that one look at the random states is enough.

        Args:
            dataset: the innermost one.
            wanted: key -> index.
        """
        divided = self._divided
        new = {key: index for key, index in wanted.items() if key not in self._held}
        if divided is None or self._is_full or self.refused is not None or not new:
            return
        states = rng.global_random_states()
        begin = time.perf_counter()
        try:
            found = {key: divided.first(dataset, index) for key, index in new.items()}
        except Exception:
            # The script is to hear of it where its own loop comes to that sample.
            rng.restore(states)
            return
        self._first_s.add((time.perf_counter() - begin) / len(found))
        if rng.generator_that_advanced(states) is not None:
            # It does so for some samples only.
            rng.restore(states)
            self._begin_again(f"{self._name} draws random numbers at changing places", len(new))
            return
        self.computed += len(found)
        self._try(self._keep, dataset, found)

    def _keep(self, dataset: Any, found: dict[Any, tuple[Any, ...]]) -> None:
        divided = self._divided
        for key, values in found.items():
            self._hold(key, values)
            if self.refused is not None or self._divided is not divided:
                # The rest that follows is another one.
                return
        if not self._is_verified:
            # Of the whole batch, computed in this order.
            self._is_verified = True
            some = _spread_over(list(found), VERIFIED_AT_FIRST, 0)
            self._verify(dataset, {key: self._held[key] for key in some})
        if self.refused is None:
            self._fresh = found

    def _hold(self, key: Any, values: tuple[Any, ...]) -> None:
        try:
            copies = copy_of(values)
            check_apart(values)
        except Unfit as error:
            self._divide_earlier(error)
            return
        self._hold_copy(key, copies)

    def _hold_copy(self, key: Any, copies: tuple[Any, ...]) -> None:
        self._held[key] = copies
        self.bytes += size_of(copies)
        self.most_bytes = max(self.most_bytes, self.bytes)
        if len(self._held) % _LOOK_EVERY == 0:
            self._look_at_memory()

    def _divide_earlier(self, error: Unfit) -> None:
        """Divide before the statement whose result cannot be kept."""
        assert self._after is not None
        self._forget()
        self._after -= 1
        if self._after == 0:
            self._refuse(f"nothing can be kept of what {self._name} computes: {error}")
            return
        self._divide()

    def _look_at_memory(self) -> None:
        free = self.place.free_bytes()
        if self._limit is None:
            self._limit = min(self._max_bytes - bytes_of_others(self), self.bytes + free)
        self._is_full = self.bytes > self._limit or free < _SPARE_BYTES

    def _verify(self, dataset: Any, held: Mapping[Any, tuple[Any, ...]]) -> None:
        """Make samples with and without what is held, under the same random states."""
        assert self._divided is not None and self._reach is not None
        if is_in_background(self._home):
            self._refuse(IN_BACKGROUND)
            return
        index = find_other_sample(self._divided, dataset, held)
        if index is not None:
            self._refuse(f"sample {index} is not the same when read again", too_late=True)
            return
        self._reach.watched.accept()


def _spread_over(keys: Sequence[Any], count: int, start: int) -> Sequence[Any]:
    """Return about `count` of them, evenly spread; another number starts with another one."""
    stride = max(1, len(keys) // count)
    return keys[start % stride :: stride]
