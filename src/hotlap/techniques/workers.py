"""Batches are made by worker processes, ahead of the training loop.

What it does   gives a DataLoader without workers some, started anew each epoch as torch does.
               What a worker sends is the bytes of its batch, up to 1 MiB: handing over shared
               memory, as torch does, takes longer (1.9 ms against 0.1 for a batch of 200 kB).
When it helps  decoding costs much, the data set does not fit in memory, and cores are free.
When it hurts  every core already computes; tiny epochs (starting workers costs some 20 ms each).
               People believe that workers read a stream in shares: unless it splits itself, each
               gives all of it. In the engine each reads all of it and keeps its own batches, so
               only transforms and collation are shared out; a stream that is slow to read gains
               one process's work, however many workers.
Numerics       exact for a data set that draws no random numbers: the sampler stays in the parent,
               and so do its draws. A data set that draws is refused (its draws would move into the
               workers).
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md
Source         torch.utils.data documentation, multi-process loading.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.task import TaskFacts, is_stream
from hotlap.techniques.record import FeedTarget, Numerics, Proof, Refusal, Technique


@dataclass(frozen=True)
class Options:
    count: int
    """Worker processes per loader."""
    prefetch: int = 2
    """Batches that each worker keeps ready."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 256:
            raise ValueError(f"count={self.count} is not allowed. Allowed: 1 to 256.")
        if not 1 <= self.prefetch <= 64:
            raise ValueError(f"prefetch={self.prefetch} is not allowed. Allowed: 1 to 64.")


def numerics(options: Options) -> Numerics:
    del options
    return Numerics.EXACT


def why_not(task: TaskFacts, host: Any, options: Options) -> str | None:
    del host, options
    if not task.training_loaders:
        return "no DataLoader feeds the training loop"
    if all(loader.num_workers > 0 for loader in task.training_loaders):
        return "the loader has worker processes already"
    if not any(loader.map_style for loader in task.training_loaders):
        return "a stream (iterable data set) would be read once by every worker"
    return None


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    from hotlap.feed.parcel import Parcels
    from hotlap.feed.reach import Reach

    loader = target.loader
    if loader.num_workers > 0:
        raise Refusal("the loader has worker processes already")
    is_iterable = is_stream(loader.dataset)
    if is_iterable and not target.own_order:
        raise Refusal("a stream (iterable data set) would be read once by every worker")
    problem = _unsharable(loader.dataset) if is_iterable else Reach(loader.dataset).problem
    if problem is not None:
        raise Refusal(problem)
    drawn = None if target.own_order else _drawn_from(loader.dataset)
    if drawn is not None:
        raise Refusal(f"reading a sample draws from {drawn}, in a worker it would draw otherwise")

    given: weakref.WeakSet[Any] = weakref.WeakSet()

    def give(loader: Any) -> None:
        # The script may make a new loader for every epoch.
        if loader.num_workers == 0:
            loader.num_workers = options.count
            loader.prefetch_factor = options.prefetch
            given.add(loader)
        if loader in given and not target.own_order:
            # Until its iterator is made: the script's own function is its own again then.
            loader.collate_fn = Parcels(loader.collate_fn)

    give(loader)
    target.later_loaders.append(give)
    return target


def _unsharable(stream: Any) -> str | None:
    from hotlap.feed.owned import own_iterator

    path = own_iterator(stream)
    if path is None:
        return None
    return f"the stream holds an open file or an iterator ({path}), which workers cannot share"


def _drawn_from(dataset: Any) -> str | None:
    from hotlap.feed import fixed

    states = fixed.global_random_states()
    dataset[0]
    drawn = fixed.moved(states)
    fixed.restore(states)
    return drawn


def proof(target: FeedTarget, options: Options) -> Proof:
    started = target.notes.get("worker_processes", 0)
    if started == 0:
        return Proof("no_effect", "no worker process was started")
    return Proof("applied", f"{started} worker processes started, {options.count} asked for")


def candidates(task: TaskFacts, host: Any) -> tuple[Mapping[str, Any], ...]:
    del task
    cores = max(1, int(host.cores))
    counts = sorted({1, cores, max(1, cores // 2)}, reverse=True)
    return tuple({"count": count} for count in counts[:2])


TECHNIQUE = Technique("workers", "feed", Options, numerics, why_not, apply, proof, candidates)
