"""One epoch of a stream: samples, steps and micro-batches, and where it resumes."""

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy.random  # noqa: F401 (a generator is seeded only if it is loaded, in every process)
from torch.utils.data import default_collate

from hotlap import rng
from hotlap.errors import RunError, UsageError
from hotlap.feed.samples.order import derive_seed, through_buffer
from hotlap.feed.samples.transform import Stages
from hotlap.task.data_sets import samples_in

log = logging.getLogger("hotlap")

BLOCK = 32
"""Samples that are read at once, under one random state; a change of states costs 70 us."""

_OF_COLLATION = 1
"""Tells the random numbers of collation from those of the data set."""

Item = tuple[int, Any]
"""Position in the stream, and sample."""

Step = tuple[int, list[Item], bool]
"""Number, the samples of all ranks, and whether it ends the epoch."""


@dataclass(slots=True)
class MicroBatch:
    """A rank's micro-batch."""

    samples: int
    """0 where the rank has none of the step."""
    batch: Any
    step: int
    """Of the epoch, from 0."""
    ends_step: bool
    ends_epoch: bool
    of_step: int
    """Samples of the step over all ranks."""


@dataclass
class StreamReader:
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
    keeps: int = 0
    """Steps whose samples are kept, so that they can be given again."""

    def __post_init__(self) -> None:
        self.stages = Stages(self, self.collate, self.transform, self.batch_transform)
        self._reading: Iterator[Step] | None = None
        self._kept: deque[Step] = deque(maxlen=self.keeps)
        self._again: list[Step] = []

    def give_again(self, first: int, micro: int) -> bool:
        """Let the next `share` begin with a step that was given before, in other micro-batches.

        Args:
            first: the step.
            micro: samples of a micro-batch.

        Returns:
            False if the samples of the step are no longer there.
        """
        self._again = [step for step in self._kept if step[0] >= first]
        self.micro = micro
        return bool(self._again) and self._again[0][0] == first

    def share(self, worker: int, workers: int) -> Iterator[MicroBatch]:
        """Give every `workers`th micro-batch of the rank, beginning with `worker`."""
        turn = 0
        for step, items, ends_epoch in self._kept_steps():
            mine = items[self.rank :: self.world]
            # A rank without samples takes part in the step all the same.
            starts = range(0, max(1, len(mine)), self.micro)
            for start in starts:
                if turn % workers == worker:
                    part = mine[start : start + self.micro]
                    ends_step = start == starts[-1]
                    yield MicroBatch(
                        len(part), self._batch(part), step, ends_step, ends_epoch, len(items)
                    )
                turn += 1

    def _batch(self, part: list[Item]) -> Any:
        if not part:
            return None
        positions = [position for position, _ in part]
        samples = [sample for _, sample in part]
        if self.collate is default_collate or self.transform is not None:
            joined = self.stages.join(samples)
        else:
            with self._seed_generators(positions[0], _OF_COLLATION):
                joined = self.stages.join(samples)
        if self.stages.is_empty:
            return joined
        with self.stages.guard_generators():
            return self.stages.make_batch(positions, joined)

    def _seed_generators(self, *numbers: int) -> rng.SeededGenerators:
        """Return a context manager that seeds the generators for a part of the work."""
        return rng.SeededGenerators(
            derive_seed(self.seed, self.epoch, *numbers), puts_back=self.protects
        )

    def _kept_steps(self) -> Iterator[Step]:
        """Give the steps that are asked for again, then those that were not read yet."""
        yield from self._again
        if self._reading is None:
            self._reading = self._steps()
        while True:
            try:
                step = next(self._reading)
            except StopIteration:
                return
            except BaseException:
                # A generator that has raised has ended: nothing would follow what is kept.
                self._kept.clear()
                raise
            self._kept.append(step)
            yield step

    def _steps(self) -> Iterator[Step]:
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
                f"the task's {self.name} yielded {total} samples in epoch {self.epoch + 1}, but at "
                f"least {self.first * self.batch + ahead} are needed: the checkpoint was saved in "
                f"this epoch, after {self.first} steps of {self.batch} samples. Resume with the "
                "data that the run was started with."
            )
        if total < (self.batch if self.drop_last else 1):
            raise self._too_short(total)
        yield step, held[: self.batch], True

    def _too_short(self, total: int) -> Exception:
        if total == 0 and self.is_again:
            return RunError(
                f"the task's {self.name} yielded no samples on the second pass, so it can be read "
                "only once. Make its `__iter__` start from the beginning each time."
            )
        if total == 0:
            return UsageError(
                f"the task's {self.name} is empty: its `__iter__` yielded no samples. Expected: "
                "one sample or more. Check what it reads, such as a path or a filter."
            )
        return UsageError(
            f"a step takes {self.batch} samples, but the task's {self.name} yielded only {total}, "
            "and drop_last=True drops an incomplete step. Use a smaller batch_size or accumulate "
            "in the task, or drop_last=False."
        )

    def _read(self) -> Iterator[Item]:
        said = samples_in(self.dataset)
        dataset = copy.copy(self.dataset)
        iterator: Iterator[Any] | None = None
        for number in count():
            with self._seed_generators(number):
                if iterator is None:
                    iterator = self._begin(dataset)
                block = list(islice(iterator, BLOCK))
            begin = number * BLOCK
            is_end = len(block) < BLOCK
            if said is not None and (
                begin + len(block) > said or (is_end and begin + len(block) < said)
            ):
                raise RunError(
                    f"`__len__` of the task's {self.name} says {said} samples, but its `__iter__` "
                    f"yielded {begin + len(block)}{'' if is_end else ' or more'}. Return the exact "
                    "number from `__len__`, or remove `__len__`."
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
                "reading changes `%s` of the dataset, but every epoch starts from the dataset as "
                "it was passed. If it counts epochs, add a method `set_epoch(epoch)`, which is "
                "called before each.",
                changed[0],
            )
