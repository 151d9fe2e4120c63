"""Batches are made by worker processes, ahead of the training loop.

What it does   gives a DataLoader without workers some, started in each epoch as torch does. A
               DataLoader that has some is given another number, or longer queues; with
               `persistent`, it keeps its workers from one epoch to the next.
               What a worker sends is the bytes of its batch, up to 1 MiB: handing over shared
               memory, as torch does, takes longer (1.9 ms against 0.1 for a batch of 200 kB).
When it helps  decoding costs much, the data set does not fit in memory, and cores are free.
When it hurts  every core already computes; tiny epochs (starting workers costs some 20 ms each).
               People believe that workers read a stream in shares: unless it splits itself, each
               gives all of it. In the engine each reads all of it and keeps its own batches, so
               only transforms and collation are shared out; a stream that is slow to read gains
               one process's work, however many workers.
Numerics       exact for a data set that draws no random numbers, if its first sample is the same in
               one thread of torch, in which a worker computes: the sampler stays in the parent,
               and so do its draws. A data set that draws is refused (its draws would move into the
               workers, or to other workers: with the number that the script has set, it may draw),
               and so is a sampler that draws between batches. Not seen is what draws
               between the start of an epoch and its first batch, as two loaders that are zipped
               do for each other, or what the loop changes in the data set as it goes.
               With `persistent`, kept workers are seeded in each epoch as new ones would be. A data
               set that counts its reads or has a random generator of its own is refused, and
               workers are started again where the data set has changed. A file that they keep open
               and that is replaced meanwhile is not seen, and an iterator that has ended gives the
               batches of the next epoch, if it is asked again after that has begun.
Measured       benchmarks/results/2026-11-21_lecture_amd-epyc-2-cores.md
Source         torch.utils.data documentation, multi-process loading.
"""

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.errors import DIFFERS
from hotlap.task import TaskFacts, is_stream
from hotlap.techniques.record import FeedTarget, Numerics, Proof, Refusal, Technique

_LONG_QUEUE = 8
"""Batches of each worker: enough where some take much longer than others."""


@dataclass(frozen=True)
class Options:
    count: int
    """Worker processes per loader."""
    prefetch: int = 2
    """Batches that each worker keeps ready, at least: the script may ask for more."""
    persistent: bool = False
    """Keep the workers from one epoch to the next, while the data set is unchanged."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 256:
            raise ValueError(f"count={self.count} is not allowed. Expected: 1 to 256.")
        if not 1 <= self.prefetch <= 64:
            raise ValueError(f"prefetch={self.prefetch} is not allowed. Expected: 1 to 64.")


def why_not(task: TaskFacts) -> str | None:
    if not task.training_loaders:
        return (
            "the training loop does not use a DataLoader, which worker processes could read for. "
            "Wrap the dataset in a `DataLoader`, or use a plan without workers."
        )
    if not any(loader.map_style for loader in task.training_loaders):
        return _on_stream(task.training_loaders[0].dataset)
    return None


def _on_stream(name: str) -> str:
    return (
        f"{name} is an iterable dataset, which every worker process would read in full. Expected: "
        "a map-style dataset, with `__getitem__` and `__len__`; or use a plan without workers."
    )


def apply(target: FeedTarget, options: Options) -> FeedTarget:
    from hotlap.feed.memory.parcel import Ear, Parcels
    from hotlap.feed.purity.in_workers import why_not_in_one_thread, why_not_in_workers
    from hotlap.feed.readers.standing_workers import StandingWorkers, why_not_standing

    loader, own = target.loader, target.loader.num_workers
    is_iterable = is_stream(loader.dataset)
    if is_iterable and not target.own_order:
        raise Refusal(_on_stream(type(loader.dataset).__qualname__))
    if own != options.count:
        data = loader.dataset
        problem = _sharing_problem(data)
        if problem is None and target.own_order and own == 0 and not is_iterable:
            problem = why_not_in_one_thread(data)
        if problem is not None:
            raise Refusal(problem)
    if not target.own_order:
        problem = why_not_standing(loader) if options.persistent else None
        if problem is None and own != options.count:
            problem = why_not_in_workers(loader)
        problem = problem or _unfit_loader(loader, options.count)
        if problem is not None:
            raise Refusal(problem)
    elif options.persistent:
        raise Refusal(
            "persistent=true has no use in a recipe, whose workers are started only once. Remove "
            "`persistent` from the plan's [techniques.workers]."
        )
    # Each batch is made by the worker that makes it in a plain run, if there are as many.
    may_draw = own == options.count
    if options.persistent:
        standing = target.notes["standing"] = StandingWorkers(may_draw=may_draw)
        target.make_iterator = standing.make_iterator

    ear = target.notes["ear"] = None if may_draw else Ear()
    given: weakref.WeakSet[Any] = weakref.WeakSet()

    def give(loader: Any) -> None:
        # The script may make a new loader for every epoch.
        if loader.num_workers == own and loader not in given:
            if not target.own_order and loader is not target.loader:
                problem = _unfit_loader(loader, options.count)
                if problem is not None:
                    target.notes["left_alone"] = problem
                    return
            loader.num_workers = options.count
            loader.prefetch_factor = max(options.prefetch, loader.prefetch_factor or 0)
            given.add(loader)
        if loader in given and not target.own_order:
            # Until its iterator is made: the script's own function is its own again then.
            loader.collate_fn = Parcels(loader.collate_fn, ear)

    give(loader)
    target.later_loaders.append(give)
    return target


def _sharing_problem(data: Any) -> str | None:
    from hotlap.feed.purity.dataset_attributes import own_iterator
    from hotlap.feed.purity.reach import Reach

    if not is_stream(data):
        problem = Reach(data).problem
        return problem and (
            f"{problem}, so it is not certain that worker processes read the same samples. Use a "
            "plan without workers, or change the dataset so that this is no longer so."
        )
    path = own_iterator(data)
    if path is None:
        return None
    return (
        f"{path} is an open file or an iterator, which worker processes cannot share. Create it in "
        "`__iter__` of the dataset."
    )


def _unfit_loader(loader: Any, count: int) -> str | None:
    """Return why so many workers would give other batches than the script's loader."""
    from hotlap.feed.purity.in_workers import draws_between_batches

    own = loader.num_workers
    if own != count and loader.worker_init_fn is not None:
        keep = (
            f"Set count={own} in the plan's [techniques.workers]"
            if own
            else "Remove worker_init_fn"
        )
        return (
            f"the DataLoader has num_workers={own} and a worker_init_fn, which may do something "
            f"else with another number of workers, such as count={count}. {keep}, or remove "
            "`workers` from the plan."
        )
    return draws_between_batches(loader)


def proof(target: FeedTarget, options: Options) -> Proof:
    started = target.notes.get("worker_processes", 0)
    if started == 0:
        return Proof("no_effect", "no worker process was started")
    if "left_alone" in target.notes:
        return Proof(
            "refused", f"a later DataLoader was left as it is: {target.notes['left_alone']}"
        )
    ear = target.notes["ear"]
    drawn = ear.moved if ear is not None else None
    if drawn is not None:
        return Proof(
            "refused",
            f"reading a sample drew from {drawn} in a worker: {DIFFERS} from a plain run. Remove "
            "`workers` from the plan",
        )
    words = f"{started} worker processes started, {options.count} requested"
    if options.persistent:
        words += f"; {target.notes['standing'].epochs} later epochs kept them"
    return Proof("applied", words)


def candidates(task: TaskFacts, host: Any) -> tuple[Mapping[str, Any], ...]:
    cores = max(1, int(host.cores))
    own = max((loader.num_workers for loader in task.training_loaders), default=0)
    if own:
        others = [{"count": cores}] if cores != own else []
        kept = {"count": own, "persistent": True}
        return ({"count": own}, {"count": own, "prefetch": _LONG_QUEUE}, kept, *others)
    counts = sorted({1, cores, max(1, cores // 2)}, reverse=True)
    return tuple({"count": count} for count in counts[:2])


TECHNIQUE = Technique(
    name="workers",
    seam="feed",
    Options=Options,
    numerics=lambda: Numerics.EXACT,
    why_not=why_not,
    apply=apply,
    proof=proof,
    candidates=candidates,
    excludes=("resident", "reader_threads"),
    rather_than=("resident",),
    on_ranks=True,
)
