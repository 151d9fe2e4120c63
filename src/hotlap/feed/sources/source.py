"""Source of a map-style dataset: its batches, epoch after epoch, from whichever reader is used."""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate

from hotlap import rng
from hotlap.errors import RunError
from hotlap.feed.readers.processes import WorkerProcesses
from hotlap.feed.readers.threads import ReaderThreads
from hotlap.feed.samples.order import derive_seed, epoch_order
from hotlap.feed.samples.reading import explain_collation_error, make_batched_reader
from hotlap.feed.samples.transform import Stages

log = logging.getLogger("hotlap")

Read = Callable[[Any], Any]


class Source:
    """Gives the micro-batches of each step, in the order that seed and epoch say.

    Feed techniques find on it what they know of a DataLoader: `dataset`, `collate_fn`,
    `num_workers` and `prefetch_factor`.

    Args:
        dataset: map-style.
        batch: samples of a step.
        micro: samples of a micro-batch; `batch` if larger.
        seed: of the order, and of samples that draw random numbers.
        shuffle: a new order for each epoch.
        drop_last: leave out what does not fill a step.
        collate: makes a batch of a list of samples.
        transform: see `Task`.
        batch_transform: see `Task`.
        epochs: of the whole run, where one follows the other; worker processes then outlive them.
        rank: gets of every step the samples from `rank` times its share on, none of the last step
            if that has fewer.
        world: number of ranks.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        *,
        micro: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        collate: Callable[[Any], Any] | None = None,
        transform: Callable[..., Any] | None = None,
        batch_transform: Callable[..., Any] | None = None,
        epochs: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.dataset = dataset
        self.rank, self.world = rank, world
        self.collate_fn = collate or default_collate
        self.num_workers = 0
        self.reader_threads = 0
        self.prefetch_factor: int | None = None
        self.wraps: list[Callable[[Any, Read], Read]] = []
        """Put around `read(positions) -> batch` at the start of an epoch, see `FeedTarget`."""
        self.notes: dict[str, Any] = {}
        """What proofs need, see `FeedTarget`."""
        self.transfer: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        """Moves an epoch's steps to the device, None if they are used on the host."""
        self.batch, self.micro = batch, min(micro or batch, share(batch, world))
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.length = len(dataset)
        self.padding: float | None = None
        """Share of the newest epoch's tokens that is padding, where lengths are known."""
        self.last = len(self)
        """Number of an epoch's last step, from 1."""
        self.samples = _Samples(dataset, seed)
        """The data set, each sample under a random state of its own."""
        self.workers = WorkerProcesses(self, epochs)
        self._together = make_batched_reader(dataset)
        self.stages = Stages(self.samples, self.collate_fn, transform, batch_transform)
        self._undrawn: Any = None

    def __len__(self) -> int:
        """Return the steps of an epoch."""
        return -(-self.length // self.batch) if not self.drop_last else self.length // self.batch

    def epoch(self, number: int, first: int = 0) -> Iterator[list[tuple[int, Any]]]:
        """Give, step by step, the (samples, micro-batch) of an epoch.

        Args:
            number: of the epoch, from 0.
            first: step of the epoch to begin with.
        """
        self._begin(number)
        given = self._read_in_background(number, first)
        if given is None:
            given = self._read_in_process(self._order(number)[first * self.batch :])
        return given if self.transfer is None else self.transfer(given)

    def again(self, number: int, first: int) -> Iterator[list[tuple[int, Any]]]:
        """Give an epoch again from a step that could not be taken, in micro-batches of `micro`.

        Args:
            number: of the epoch, from 0.
            first: the step.
        """
        return self.epoch(number, first)

    def _read_in_background(
        self, number: int, first: int
    ) -> Iterator[list[tuple[int, Any]]] | None:
        """Read by threads or worker processes, if the plan says so and they can serve."""
        if self.num_workers:
            return self.workers.epoch(number, first)
        if not self.reader_threads:
            return None
        steps = self.steps(number)[first:]
        threads = ReaderThreads.start_threads(self, steps)
        return None if threads is None else threads.steps(steps)

    def steps(self, epoch: int) -> Sequence[Sequence[torch.Tensor]]:
        """Return the positions of each micro-batch of each step of an epoch."""
        return self._split(self._order(epoch))

    def count_samples(self, epoch: int, step: int) -> int:
        """Return the samples of a step over all ranks.

        Args:
            epoch: from 0.
            step: of the epoch, from 0.
        """
        del epoch
        return min(self.batch, self.length - step * self.batch)

    def batch_of(self, positions: torch.Tensor) -> Any:
        """Return the batch of these positions, of which one may come twice, as epoch 0 reads it.

        Random states are afterwards others.
        """
        self.samples.epoch = 0
        joined = self._collate(self.samples, positions.tolist())
        if self.stages.is_empty:
            return joined
        with self.stages.guard_generators():
            return self.stages.make_batch(positions, joined)

    def _order(self, epoch: int) -> torch.Tensor:
        order = epoch_order(self.length, seed=self.seed, epoch=epoch, shuffle=self.shuffle)
        return order[: len(self) * self.batch]

    def _begin(self, epoch: int) -> None:
        self.samples.epoch = epoch
        if self._together is not None:
            self._together.look_again()
        self.stages.holds = bool(self.wraps)

    def _split(self, order: torch.Tensor) -> list[Sequence[torch.Tensor]]:
        whole = order.split(self.batch) if len(order) else ()
        if self._is_whole:
            return [(positions,) for positions in whole]
        if self.world == 1:
            return [positions.split(self.micro) for positions in whole]
        return [self.split_share(positions) for positions in whole]

    @property
    def _is_whole(self) -> bool:
        """True if each step is one batch, of this process alone."""
        return self.world == 1 and self.micro == self.batch

    def split_share(self, positions: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return this rank's share of some samples of a step, in micro-batches."""
        size = share(self.batch, self.world)
        mine = positions[self.rank * size : (self.rank + 1) * size]
        return mine.split(self.micro) if len(mine) else ()

    def _read_in_process(self, order: torch.Tensor) -> Iterator[list[tuple[int, Any]]]:
        read = self._reader()
        serve = getattr(read, "serve", None)
        if serve is not None and self._is_whole:
            return self._serve_steps(serve, order)
        return self._read_steps(read, self._split(order))

    def _reader(self) -> Read:
        read = self.apply_wraps(self._read)
        return read if self.stages.is_empty else self.stages.wrap_read(read)

    def apply_wraps(self, read: Read) -> Read:
        """Return what gives the batches that techniques keep, and reads the others with `read`."""
        for wrap in self.wraps:
            read = wrap(self.dataset, read)
        return read

    def _read_steps(
        self, read: Read, steps: Sequence[Sequence[torch.Tensor]]
    ) -> Iterator[list[tuple[int, Any]]]:
        for micros in steps:
            step = [(positions.numel(), read(positions)) for positions in micros]
            self._put_back()
            yield step

    def _serve_steps(
        self, serve: Callable[[torch.Tensor, int], Iterator[Any]], order: torch.Tensor
    ) -> Iterator[list[tuple[int, Any]]]:
        size, left = self.batch, len(order)
        for batch in serve(order, size):
            if self._undrawn is not None:
                self._put_back()
            yield [(size if left > size else left, batch)]
            left -= size

    def _put_back(self) -> None:
        if self._undrawn is not None:
            rng.restore(self._undrawn)
            self._undrawn = None

    def _read(self, positions: Any) -> Any:
        is_step = isinstance(positions, torch.Tensor)
        wanted = positions.tolist() if is_step else list(positions)
        samples = self.samples
        states = rng.global_random_states()
        if samples.draws:
            try:
                return self._collate(samples, wanted)
            finally:
                rng.restore(states)
        batch = self._collate(self._together or self.dataset, wanted)
        if rng.generator_that_advanced(states) is None:
            return batch
        # From now on every sample has a random state of its own, this batch's included. Whoever
        # wraps this function may see that it draws; the run's own states are put back behind it.
        samples.draws = True
        if is_step:
            self._undrawn = states
        return self._collate(samples, wanted)

    def _collate(self, dataset: Any, wanted: Sequence[int]) -> Any:
        try:
            if dataset is self._together:
                samples = dataset.read(wanted)
            else:
                samples = [dataset[position] for position in wanted]
            return self.stages.join(samples)
        except (TypeError, RuntimeError) as error:
            told = explain_collation_error(error)
            if told is error:
                raise
            raise told from error
        except StopIteration as error:
            # It would end the epoch without a word.
            raise RunError(
                "the dataset's `__getitem__` raised StopIteration for one of the samples "
                f"{wanted[0]} to {wanted[-1]}. Return a sample for every index below "
                "`len(dataset)`; to report a faulty sample, raise another exception, such as "
                "ValueError."
            ) from error


def share(batch: int, world: int) -> int:
    """Return the most samples of a step that one of several ranks gets."""
    return -(-batch // world)


class _Samples(Dataset[Any]):
    """A data set whose every sample is read under a random state of its own."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed
        self.epoch = 0
        self.draws = False

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: int) -> Any:
        rng.reseed(derive_seed(self.seed, self.epoch, position))
        return self.dataset[position]
