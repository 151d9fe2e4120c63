"""Source of an iterable dataset: its batches, epoch after epoch, from whichever reader is used.

Everybody who reads, every worker process of every rank, goes through the whole stream in the same
way, knows from its position which step, rank and worker a sample belongs to, and keeps its own. So
each sample comes exactly once, steps are the same for any number of workers, and every rank makes
the same number of steps. The data set need not split itself, and is kept from it: how it would
split, and so its order, depends on how many read. What a worker saves is collation.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from hotlap.compat import end_workers, hide_worker_info
from hotlap.errors import UsageError
from hotlap.feed.memory.parcel import end_with_parent, parcel
from hotlap.feed.purity.dataset_attributes import is_endless, own_generator
from hotlap.feed.readers.worker_signals import leave_signals_to_parent, starting_workers
from hotlap.feed.samples.order import derive_seed
from hotlap.feed.samples.transform import identity_collate, takes_generator
from hotlap.feed.sources.source import share
from hotlap.feed.sources.stream_reader import MicroBatch, StreamReader
from hotlap.task.data_sets import samples_in


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
        micro: samples of a rank's micro-batch; its share of `batch` if larger.
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
            raise UsageError(f"rank={rank} is not valid. Expected: 0 to {world - 1}.")
        if ends and is_endless(dataset):
            raise UsageError(
                f"the task's {name} is {type(dataset).__name__}, whose `__iter__` never ends, but "
                "epochs must end. Make `__iter__` end; or, if this is the training data, set "
                "steps=N instead of epochs in the task."
            )
        generator = own_generator(dataset)
        if generator is not None and not hasattr(dataset, "set_epoch"):
            raise UsageError(
                f"the task's {name} has its own random generator ({generator}), so its samples "
                "would depend on the number of workers, and on whether the run was resumed. Use "
                "the global RNG of Python, numpy or torch, which is seeded for every epoch, or add "
                "a method `set_epoch(epoch)` that seeds the generator."
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
        self.batch, self.micro = batch, min(micro or batch, share(batch, world))
        self.last: int | None = None
        """Number of the epoch's last step, from 1; None until that step is given."""
        self.seed, self.shuffle, self.buffer, self.drop_last = seed, shuffle, buffer, drop_last
        self.rank, self.world = rank, world
        self.name = name
        self._is_read = False
        self._reader: StreamReader | None = None
        """Of the newest epoch."""
        self._counted: deque[int] = deque()
        """Samples over all ranks of each step that was given and not yet asked for."""

    def epoch(self, number: int, first: int = 0) -> Iterator[list[tuple[int, Any]]]:
        """Give, step by step, the (samples, micro-batch) of an epoch.

        Args:
            number: of the epoch, from 0.
            first: step of the epoch to begin with.

        Raises:
            UsageError: the data set gave no sample, or none that fill a step.
            RunError: it gave another number of samples than it said, or than before.
        """
        reader = StreamReader(
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
            # What is on its way to the device was read before its step.
            keeps=1 + getattr(self.transfer, "ahead", 0),
        )
        return self._begin(reader)

    def again(self, number: int, first: int) -> Iterator[list[tuple[int, Any]]]:
        """Give an epoch again from a step that could not be taken, in micro-batches of `micro`.

        Its samples are still there, so that nothing is read again. Worker processes keep none:
        with them the epoch is read from its start, as in `epoch`.

        Args:
            number: of the epoch, from 0.
            first: the step.
        """
        reader = self._reader
        if (
            reader is None
            or self.num_workers
            or reader.epoch != number
            or not reader.give_again(first, self.micro)
        ):
            return self.epoch(number, first)
        return self._begin(reader)

    def _begin(self, reader: StreamReader) -> Iterator[list[tuple[int, Any]]]:
        self._reader, self.last = reader, None
        self._counted.clear()
        given = self._steps(reader)
        return given if self.transfer is None else self.transfer(given)

    def _steps(self, reader: StreamReader) -> Iterator[list[tuple[int, Any]]]:
        step: list[tuple[int, Any]] = []
        for done in self._by_workers(reader) if self.num_workers else reader.share(0, 1):
            if done.samples:
                step.append((done.samples, done.batch))
            if done.ends_step:
                if done.ends_epoch:
                    self.last = done.step + 1
                    self._is_read = True
                if self.world > 1:
                    self._counted.append(done.of_step)
                yield step
                step = []

    def count_samples(self, epoch: int, step: int) -> int:
        """Return the samples over all ranks of the next step; to be asked once for each."""
        del epoch, step
        return self._counted.popleft()

    def _by_workers(self, reader: StreamReader) -> Iterator[MicroBatch]:
        loader = DataLoader(
            _Share(reader),
            batch_size=None,
            num_workers=self.num_workers,
            prefetch_factor=self.prefetch_factor,
            collate_fn=identity_collate,
            # Not from the global one: the model's own draws must not depend on who reads.
            generator=torch.Generator().manual_seed(derive_seed(self.seed, reader.epoch)),
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


class _Share(IterableDataset[MicroBatch]):
    """What one worker process makes."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader

    def __iter__(self) -> Iterator[MicroBatch]:
        info = get_worker_info()
        assert info is not None
        leave_signals_to_parent()
        hide_worker_info()
        end_with_parent()
        for done in self.reader.share(info.id, info.num_workers):
            yield replace(done, batch=parcel(done.batch))
