"""Reader threads: samples are read and transformed ahead of the training loop.

One thread makes one whole batch, and batches are handed over in their order. The threads share
their process's random states and the data set's open files, so both are looked at first.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from hotlap import rng
from hotlap.errors import RunError, UsageError
from hotlap.feed.purity.reach import Reach
from hotlap.feed.purity.same_samples import samples_equal
from hotlap.feed.samples.transform import read_at

_LOOKED_AT = 16
"""Samples read at the start of an epoch by the calling thread and by all others at once."""
_SUSPECTED = 8
"""Batches of an epoch that are read once more, where somebody drew while a thread read them."""

Steps = Sequence[Sequence[torch.Tensor]]


class ReaderThreads:
    """An epoch whose batches are made by threads.

    Args:
        source: a `Source`, for its data set, its stages and what its techniques keep in memory.
        pool: the threads.
    """

    def __init__(self, source: Any, pool: ThreadPoolExecutor) -> None:
        self.source, self.pool = source, pool
        self.dataset, self.stages = source.dataset, source.stages

    @classmethod
    def start_threads(cls, source: Any, steps: Steps) -> "ReaderThreads | None":
        """Start the threads; None, with the reason in the source's notes, if they cannot serve."""
        notes = source.notes.setdefault("reader_threads", {"batches": 0, "refused": None})
        # Of a step with fewer samples than ranks a rank may have none.
        first = next((positions for step in steps for positions in step), None)
        if first is None or notes["refused"] is not None:
            return None
        threads = cls(source, ThreadPoolExecutor(source.reader_threads, "hotlap feed"))
        may_serve = False
        try:
            notes["refused"] = threads.problem(first)
            may_serve = notes["refused"] is None
        finally:
            if not may_serve:
                threads.pool.shutdown(cancel_futures=True)
        return threads if may_serve else None

    def problem(self, positions: torch.Tensor) -> str | None:
        """Return why samples cannot be read by threads, as far as the first of an epoch show it.

        Raises:
            UsageError: reading changes the data set, and it has been read to see that.
        """
        if self.stages.uses_globals:
            return (
                "transform(sample) draws from the global RNGs, which threads share: write it as "
                "transform(sample, generator)"
            )
        wanted = positions[:_LOOKED_AT].tolist()
        states = rng.global_random_states()
        self._check_unchanged(wanted[0])
        rng.restore(states)
        expected = self._samples(wanted)
        drawn = rng.generator_that_advanced(states)
        rng.restore(states)
        if drawn is not None:
            return f"reading a sample draws from {drawn}, which threads share"
        read = self.pool.map(lambda position: read_at(self.dataset, position), wanted)
        for position, left, right in zip(wanted, expected, read, strict=True):
            try:
                is_same = samples_equal(left, right, unknown=True)
            except Exception as error:
                return f"sample {position} cannot be compared ({type(error).__name__}: {error})"
            if not is_same:
                return (
                    f"sample {position} is different when several threads read: the dataset is not "
                    "thread-safe (does it share an open file?)"
                )
        if not self.stages.is_empty:
            with self.stages.guard_generators():
                self.stages.make_batch(wanted, self.stages.join(expected))
        return None

    def _check_unchanged(self, position: int) -> None:
        # The first time files may be opened.
        read_at(self.dataset, position)
        reach = Reach(self.dataset)
        read_at(self.dataset, position)
        changed = reach.watched.find_rebinding()
        if changed is not None:
            raise UsageError(
                f"the dataset changes {changed} when a sample is read, so with threads samples "
                "would depend on the order of reading. Remove `reader_threads` from the plan, or "
                "make `__getitem__` leave the dataset unchanged."
            )

    def steps(self, steps: Steps) -> Iterator[list[tuple[int, Any]]]:
        """Give, step by step, the (samples, micro-batch) of an epoch."""
        ahead = self.source.reader_threads * (self.source.prefetch_factor or 2)
        todo = itertools.chain.from_iterable(steps)
        make = self._behind_what_is_kept() if self.source.wraps else self._submit
        ready: deque[Future[Any]] = deque(make(p) for p in itertools.islice(todo, ahead))
        notes, suspicions = self.source.notes["reader_threads"], 0
        try:
            for micros in steps:
                step = []
                for positions in micros:
                    batch, has_moved = ready.popleft().result()
                    if has_moved and suspicions < _SUSPECTED:
                        # It may have been the model, or the user's loop.
                        suspicions += 1
                        # What the other threads draw meanwhile would be taken for a transform's.
                        wait(ready)
                        self._check(positions)
                    ready.extend(make(p) for p in itertools.islice(todo, 1))
                    step.append((positions.numel(), batch))
                    notes["batches"] += 1
                yield step
        finally:
            self.pool.shutdown(cancel_futures=True)

    def _submit(self, positions: torch.Tensor) -> "Future[Any]":
        return self.pool.submit(self._batch, positions)

    def _batch(self, positions: torch.Tensor) -> tuple[Any, bool]:
        """Return a batch, and whether a random state of the process moved meanwhile."""
        states = rng.global_random_states()
        joined = self.stages.join(self._samples(positions.tolist()))
        batch = self.stages.make_batch(positions, joined)
        return batch, rng.generator_that_advanced(states) is not None

    def _make_batch(self, positions: torch.Tensor, joined: Any) -> tuple[Any, bool]:
        return self.stages.make_batch(positions, joined), False

    def _check(self, positions: torch.Tensor) -> None:
        """Read a batch in the calling thread, and see whether that draws.

        Raises:
            RunError: it does.
        """
        states = rng.global_random_states()
        joined = self.stages.join(self._samples(positions.tolist()))
        drawn = rng.generator_that_advanced(states)
        rng.restore(states)
        if drawn is not None:
            raise self._too_late(drawn)
        with self.stages.guard_generators():
            self.stages.make_batch(positions, joined)

    def _too_late(self, drawn: str) -> RunError:
        return RunError(
            f"the dataset draws from {drawn} when a sample is read, and threads share it, so "
            "results would differ from run to run. In the plan, replace "
            "[techniques.reader_threads] by [techniques.workers] with `count = N`; or draw in the "
            "task's `transform(sample, generator)` from `generator`, not in the dataset."
        )

    def _samples(self, wanted: Sequence[int]) -> list[Any]:
        return [read_at(self.dataset, position) for position in wanted]

    def _behind_what_is_kept(self) -> Any:
        read = self.source.apply_wraps(self._read_together)

        def submit(positions: torch.Tensor) -> "Future[Any]":
            # What is kept is looked after by one thread, which reads what is missing with all.
            return self.pool.submit(self._make_batch, positions, read(positions))

        return submit

    def _read_together(self, positions: Any) -> Any:
        wanted = positions.tolist() if isinstance(positions, torch.Tensor) else list(positions)
        size = -(-len(wanted) // self.source.reader_threads)
        parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        states = rng.global_random_states()
        samples = [sample for part in self.pool.map(self._samples, parts) for sample in part]
        drawn = rng.generator_that_advanced(states)
        if drawn is not None:
            raise self._too_late(drawn)
        return self.stages.join(samples)
