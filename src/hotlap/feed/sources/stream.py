"""An iterable data set as the batches of one epoch after another, whatever tier reads them.

Everybody who reads, every worker process of every rank, goes through the whole stream in the same
way, knows from its position which step, rank and worker a sample belongs to, and keeps its own. So
each sample comes exactly once, steps are the same for any number of workers, and every rank makes
the same number of steps. The data set need not split itself, and is kept from it: how it would
split, and so its order, depends on how many read. What a worker saves is collation.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy.random  # noqa: F401 (a generator is seeded only if it is loaded, in every process)
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from hotlap.compat import end_workers, hide_worker_info
from hotlap.errors import RunError, UsageError
from hotlap.feed.memory.owned import is_endless, own_generator
from hotlap.feed.memory.parcel import end_with_parent, parcel
from hotlap.feed.purity import fixed
from hotlap.feed.readers.undisturbed import leave_signals_to_parent, starting_workers
from hotlap.feed.samples.order import mixed, through_buffer
from hotlap.feed.samples.transform import Stages, as_it_is, takes_generator
from hotlap.task.data_sets import samples_in

log = logging.getLogger("hotlap")

BLOCK = 32
"""Samples that are read at once, under one random state; a change of states costs 70 us."""

_OF_COLLATION = 1
"""Tells the random numbers of collation from those of the data set."""

Item = tuple[int, Any]
"""Position in the stream, and sample."""


class Stream:
    """Gives the micro-batches of each step, as `feed.source.Source` does of a map-style data set.

    The data set is read from its start in every epoch, by `iter` of a shallow copy: what an
    iteration leaves behind in its attributes is not there in the next one. If it has a method
    `set_epoch(epoch)`, that is called before, with the number from 0. Its draws from the global
    generators of Python, numpy and torch follow from seed and epoch. Neither its own split by
    `get_worker_info` or `shard` is used, nor its `state_dict`: an epoch is entered in the middle by
    reading, without collation, what lies before.

    Args:
        dataset: has `__iter__`; each iteration begins anew, and gives the same samples.
        batch: samples of a step, over all ranks.
        micro: samples of a rank's micro-batch; `batch` if larger.
        seed: of the order, and of the random numbers that the data set draws.
        shuffle: another order for each epoch, made with a buffer.
        buffer: samples in that buffer; each sample to come next is drawn from them.
        drop_last: leave out what does not fill a step.
        collate: makes a batch of a list of samples.
        transform: see `Task`.
        batch_transform: see `Task`.
        rank: gets of every step the samples at the places rank, rank + world, ...; none of the last
            step if that has fewer.
        world: number of ranks.
        ends: epochs must end, as no number of steps ends the run.
        name: of the data set in the task, for messages.

    Raises:
        UsageError: the data set never ends, or owns a random generator that nobody seeds.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        micro: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        buffer: int = 1000,
        drop_last: bool = False,
        collate: Callable[[Any], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        rank: int = 0,
        world: int = 1,
        ends: bool = False,
        name: str = "data",
    ) -> None:
        if not 0 <= rank < world:
            raise UsageError(f"rank={rank} is not allowed. Allowed: 0 to {world - 1}.")
        if ends and is_endless(dataset):
            raise UsageError(
                f"{name} is {type(dataset).__name__}, whose `__iter__` never ends, where epochs "
                "must end. Allowed: one that ends, or for training steps=N in place of epochs."
            )
        generator = own_generator(dataset)
        if generator is not None and not hasattr(dataset, "set_epoch"):
            raise UsageError(
                f"{name} owns a random generator ({generator}): what it draws would depend "
                "on who reads, and on how often the run was resumed. Allowed: Python's, numpy's or "
                "torch's global generators, which are seeded for every epoch; or a method "
                "`set_epoch(epoch)` that seeds its own."
            )
        if transform is not None:
            takes_generator(transform)
        self.transform, self.batch_transform = transform, batch_transform
        self.dataset = dataset
        self.collate_fn = collate or default_collate
        self.num_workers = 0
        self.prefetch_factor: int | None = None
        self.wraps: list[Callable[..., Any]] = []
        """Unused: there are no positions that a batch could be asked for by."""
        self.notes: dict[str, Any] = {}
        """What proofs need, see `FeedTarget`."""
        self.transfer: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        """Moves an epoch's steps to the device, None if they are used on the host."""
        self.padding: float | None = None
        """Unknown: a stream's lengths are not known beforehand."""
        self.length = samples_in(dataset) or 0
        """Samples of an epoch, 0 if unknown."""
        self.batch, self.micro = batch, min(micro or batch, batch)
        self.last: int | None = None
        """Number of the epoch's last step, from 1; None until that step is given."""
        self.seed, self.shuffle, self.buffer, self.drop_last = seed, shuffle, buffer, drop_last
        self.rank, self.world = rank, world
        self.name = name
        self._is_read = False

    def epoch(self, number: int, first: int = 0) -> Iterator[list[tuple[int, Any]]]:
        """Give, step by step, the (samples, micro-batch) of an epoch.

        Args:
            number: of the epoch, from 0.
            first: step of the epoch to begin with.

        Raises:
            UsageError: the data set gave no sample, or none that fill a step.
            RunError: it gave another number of samples than it said, or than before.
        """
        reader = _Reader(
            name=self.name,
            dataset=self.dataset,
            collate=self.collate_fn,
            transform=self.transform,
            batch_transform=self.batch_transform,
            batch=self.batch,
            micro=self.micro,
            seed=self.seed,
            epoch=number,
            first=first,
            buffer=self.buffer if self.shuffle else 0,
            drop_last=self.drop_last,
            rank=self.rank,
            world=self.world,
            is_again=self._is_read,
            protects=not self.num_workers,
        )
        self.last = None
        given = self._steps(reader)
        return given if self.transfer is None else self.transfer(given)

    def _steps(self, reader: "_Reader") -> Iterator[list[tuple[int, Any]]]:
        step: list[tuple[int, Any]] = []
        for done in self._by_workers(reader) if self.num_workers else reader.share(0, 1):
            if done.samples:
                step.append((done.samples, done.batch))
            if done.ends_step:
                if done.ends_epoch:
                    self.last = done.step + 1
                    self._is_read = True
                yield step
                step = []

    def _by_workers(self, reader: "_Reader") -> Iterator["_Micro"]:
        loader = DataLoader(
            _Share(reader),
            batch_size=None,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            collate_fn=as_it_is,
            # Not from the global one: the model's own draws must not depend on who reads.
            generator=torch.Generator().manual_seed(mixed(self.seed, reader.epoch)),
        )
        with starting_workers():
            batches = iter(loader)
        self.notes["worker_processes"] = self.num_workers
        try:
            yield from batches
        except Exception as error:
            # With the frames of torch the error would hold the workers, and to stop them when they
            # are found as garbage takes torch 5 s each. The worker's own frames are in the message.
            raise error.with_traceback(None) from None
        finally:
            end_workers(batches)
            del batches


@dataclass(slots=True)
class _Micro:
    """A rank's micro-batch."""

    samples: int
    """0 where the rank has none of the step."""
    batch: Any
    step: int
    """Of the epoch, from 0."""
    ends_step: bool
    ends_epoch: bool


@dataclass
class _Reader:
    """One epoch, for whoever reads it; worker processes have it whole."""

    name: str
    dataset: Any
    collate: Callable[[Any], Any]
    transform: Callable[..., Any] | None
    batch_transform: Callable[..., Any] | None
    batch: int
    micro: int
    seed: int
    epoch: int
    first: int
    buffer: int
    """0: the stream's own order."""
    drop_last: bool
    rank: int
    world: int
    is_again: bool
    """The data set was read before, and gave samples."""
    protects: bool
    """The process is not the reader's own: its random states must be as they were."""

    def __post_init__(self) -> None:
        self.stages = Stages(self, self.collate, self.transform, self.batch_transform)

    def share(self, worker: int, workers: int) -> Iterator[_Micro]:
        """Give every `workers`th micro-batch of the rank, beginning with `worker`."""
        turn = 0
        for step, items, ends_epoch in self._steps():
            mine = items[self.rank :: self.world]
            # A rank without samples takes part in the step all the same.
            starts = range(0, max(1, len(mine)), self.micro)
            for start in starts:
                if turn % workers == worker:
                    part = mine[start : start + self.micro]
                    ends_step = start == starts[-1]
                    yield _Micro(len(part), self._batch(part), step, ends_step, ends_epoch)
                turn += 1

    def _batch(self, part: list[Item]) -> Any:
        if not part:
            return None
        positions = [position for position, _ in part]
        samples = [sample for _, sample in part]
        if self.collate is default_collate or self.transform is not None:
            joined = self.stages.join(samples)
        else:
            with self._under(positions[0], _OF_COLLATION):
                joined = self.stages.join(samples)
        if self.stages.is_empty:
            return joined
        with self.stages.watched():
            return self.stages.finished(positions, joined)

    def _under(self, *numbers: int) -> fixed.Seeded:
        """Return a context manager that seeds the generators for a part of the work."""
        return fixed.Seeded(mixed(self.seed, self.epoch, *numbers), puts_back=self.protects)

    def _steps(self) -> Iterator[tuple[int, list[Item], bool]]:
        """Give (number, the samples of all ranks, whether it ends the epoch) of each step."""
        items = self._read()
        if self.buffer:
            items = through_buffer(items, self.buffer, seed=self.seed, epoch=self.epoch)
        # As many must be there behind a step as it takes to know that another one follows.
        ahead = self.batch if self.drop_last else 1
        held: list[Item] = []
        step = 0
        for item in items:
            held.append(item)
            if len(held) == self.batch + ahead:
                if step >= self.first:
                    yield step, held[: self.batch], False
                del held[: self.batch]
                step += 1
        total = step * self.batch + len(held)
        if step < self.first:
            raise RunError(
                f"{self.name} gave {total} samples in epoch {self.epoch + 1}, but {self.first} "
                f"steps of {self.batch} had been done in it when the run was saved. Allowed: to "
                "resume with the same data."
            )
        if total < (self.batch if self.drop_last else 1):
            raise self._too_short(total)
        yield step, held[: self.batch], True

    def _too_short(self, total: int) -> Exception:
        if total == 0 and self.is_again:
            return RunError(
                f"{self.name} gave no sample when it was read again: it can be read only once. "
                "Allowed: an `__iter__` that begins anew each time."
            )
        if total == 0:
            return UsageError(
                f"{self.name} is empty: its iterator ended before it gave a sample. Allowed: a "
                "data set with one sample or more."
            )
        return UsageError(
            f"a step takes {self.batch} samples, {self.name} gave {total}, and drop_last leaves "
            "out what does not fill a step. Allowed: a smaller batch_size or accumulate, or "
            "drop_last=False."
        )

    def _read(self) -> Iterator[Item]:
        said = samples_in(self.dataset)
        dataset = copy.copy(self.dataset)
        iterator: Iterator[Any] | None = None
        for number in count():
            with self._under(number):
                if iterator is None:
                    iterator = self._begin(dataset)
                block = list(islice(iterator, BLOCK))
            begin = number * BLOCK
            is_end = len(block) < BLOCK
            if said is not None and (
                begin + len(block) > said or (is_end and begin + len(block) < said)
            ):
                raise RunError(
                    f"{self.name}'s `__len__` says {said} samples, it gave "
                    f"{begin + len(block)}{'' if is_end else ' and more'}. Allowed: a `__len__` "
                    "that is right, or none."
                )
            yield from enumerate(block, begin)
            if is_end:
                break
        self._tell_of_changes(dataset)

    def _begin(self, dataset: Any) -> Iterator[Any]:
        set_epoch = getattr(dataset, "set_epoch", None)
        if callable(set_epoch):
            set_epoch(self.epoch)
        return iter(dataset)

    def _tell_of_changes(self, dataset: Any) -> None:
        if self.epoch or hasattr(dataset, "set_epoch"):
            return
        before = getattr(self.dataset, "__dict__", {})
        after = getattr(dataset, "__dict__", {})
        changed = [k for k in after if k in before and after[k] is not before[k]]
        if changed:
            log.warning(
                "reading changes `%s` of the data set, but every epoch begins with the data set as "
                "it was given. If it counts its epochs: `set_epoch(epoch)` is called before each.",
                changed[0],
            )


class _Share(IterableDataset[_Micro]):
    """What one worker process makes."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def __iter__(self) -> Iterator[_Micro]:
        info = get_worker_info()
        assert info is not None
        leave_signals_to_parent()
        hide_worker_info()
        end_with_parent()
        for done in self.reader.share(info.id, info.num_workers):
            yield replace(done, batch=parcel(done.batch))
