"""Keeps a DataLoader's worker processes from one epoch to the next, as `persistent_workers` does.

torch starts workers anew in each epoch: they get the data set as it is then, and their random
generators a new seed. Here they are kept as long as the data set is the same, and are given the
seeds of new ones.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from hotlap.feed.memory.parcel import Parcels
from hotlap.feed.memory.worker_streams import seed_as_worker
from hotlap.feed.purity.in_child import can_fork
from hotlap.feed.purity.in_workers import asks_for_its_worker, changes_when_read
from hotlap.feed.purity.reach import Reach, try_to_look


class StandingWorkers:
    """Makes the iterators of the DataLoaders over one data set; later epochs have the same workers.

    Args:
        may_draw: kept workers are seeded as new ones would be. Where they may not, they are not,
            so that an `Ear` hears each draw.

    Attributes:
        epochs: how many have begun with the workers of the one before.
    """

    def __init__(self, *, may_draw: bool) -> None:
        self.epochs = 0
        self._may_draw = may_draw
        # The workers end with the loader: an iterator does not hold it.
        self._kept: weakref.WeakKeyDictionary[Any, _Kept] = weakref.WeakKeyDictionary()

    def make_iterator(self, loader: Any, make: Callable[[], Any]) -> Any:
        """Return an iterator over the workers of the last epoch, or over new ones.

        Args:
            loader: a DataLoader.
            make: makes its iterator as torch does.
        """
        if loader.num_workers == 0 or loader.persistent_workers:
            return make()
        kept, now = self._kept.pop(loader, None), _marks_of(loader)
        if now is None:
            return make()
        if kept is not None and kept.marks == now and kept.is_waiting():
            kept.begin_epoch(loader, seeds=self._may_draw)
            self.epochs += 1
        else:
            kept = _Kept(make(), now)
        self._kept[loader] = kept
        return kept.iterator


class _Kept:
    """An iterator whose workers wait when an epoch has ended.

    Args:
        iterator: torch's.
        marks: what its workers have a copy of, as it was when they were started.
    """

    def __init__(self, iterator: Any, marks: Any) -> None:
        self.iterator, self.marks = iterator, marks
        iterator._persistent_workers = True

    def is_waiting(self) -> bool:
        """True if the epoch has come to its end, and every worker is there."""
        done = self.iterator._rcvd_idx == self.iterator._send_idx
        return done and all(worker.is_alive() for worker in self.iterator._workers)

    def begin_epoch(self, loader: Any, *, seeds: bool) -> None:
        """Begin another epoch; draw what an iterator that is made anew draws, in its order."""
        iterator = self.iterator
        # It asks for an order twice, and uses the second.
        iter(iterator._index_sampler)
        seed = torch.empty((), dtype=torch.int64)
        base_seed = int(seed.random_(generator=loader.generator).item())
        iterator._base_seed = base_seed
        if seeds:
            # torch sends this to each of the workers when it asks them to begin.
            iterator._shared_seed = _Seeds(base_seed)
        iterator._reset(loader)


class _Seeds:
    """Seeds a worker when it is unpickled there, and becomes None."""

    def __init__(self, base_seed: int) -> None:
        self._base_seed = base_seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _seed_this_worker, (self._base_seed,)


def _seed_this_worker(base_seed: int) -> None:
    info = get_worker_info()
    if info is not None:
        seed_as_worker(base_seed, info.id)
        # torch forbids a plain assignment.
        object.__setattr__(info, "seed", base_seed + info.id)


def _marks_of(loader: Any) -> Any:
    """Return what stands for all that a worker's batches depend on, None if that is not known."""
    collate = loader.collate_fn
    collate = collate.collate if isinstance(collate, Parcels) else collate
    looks = [try_to_look(loader.dataset), try_to_look(collate)]
    marks = [look.marks for look in looks if look is not None and look.problem is None]
    if len(marks) < len(looks) or loader.worker_init_fn is not None:
        return None
    settings = loader.num_workers, loader.prefetch_factor, loader.timeout, loader.pin_memory
    return settings, id(loader.generator), marks


def why_not_standing(loader: Any) -> str | None:
    """Return why workers of an earlier epoch would give other batches, None if nothing shows.

    Draws from the global random generators make none, since these are seeded anew. Whether another
    number of workers draws otherwise is `why_not_in_workers`' question.

    Args:
        loader: a script's DataLoader.
    """
    if loader.persistent_workers:
        return (
            "the DataLoader has persistent_workers=True already. Remove `persistent` from the "
            "plan's [techniques.workers]."
        )
    if loader.worker_init_fn is not None:
        return (
            "the DataLoader has a worker_init_fn, which is called for new workers only, but "
            "persistent=true keeps workers. Remove `persistent` from the plan's "
            "[techniques.workers]."
        )
    if not can_fork():
        return (
            "persistent=true needs Linux, where a forked process can check that samples do not "
            "depend on earlier ones. Remove `persistent` from the plan's [techniques.workers]."
        )
    looked = Reach(loader.dataset)
    if asks_for_its_worker(looked):
        return (
            "the dataset calls `get_worker_info`, whose seed would no longer change from epoch to "
            "epoch if workers were kept. Remove `persistent` from the plan's [techniques.workers]."
        )
    return looked.problem or changes_when_read(loader.dataset)
