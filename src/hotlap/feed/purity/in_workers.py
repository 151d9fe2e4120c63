"""Whether samples and their order are the same where worker processes read."""

import copy
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import torch
from torch.utils.data._utils import worker as _worker

from hotlap import rng
from hotlap.feed.purity.change_watch import ChangeWatch
from hotlap.feed.purity.in_child import can_fork, in_child
from hotlap.feed.purity.reach import Reach, try_to_look
from hotlap.feed.purity.same_samples import samples_equal
from hotlap.nested import leaves, tensors

log = logging.getLogger("hotlap")

DRAWS = "reading a sample draws from "
"""A reason that begins so speaks of random augmentation."""
_SEED = 0xFEED
_AGAIN, _AGAIN_S = 8, 0.5
"""How often a sample is read again, and for how long: an augmentation may be left to chance."""
_LOOKED_AT = 4
"""Batches that a sampler is asked for to see whether it draws as it goes."""


def why_not_in_workers(loader: Any, looked: Reach | None = None) -> str | None:
    """Return why samples would be others in another number of workers, None if nothing shows.

    Args:
        loader: a script's DataLoader.
        looked: what its data set reaches, if that was looked at already.
    """
    dataset, threads = loader.dataset, torch.get_num_threads()
    if asks_for_its_worker(looked or try_to_look(dataset)):
        return (
            "the dataset calls `get_worker_info`, so its samples may depend on the number of "
            f"workers (num_workers={loader.num_workers} in the DataLoader). Remove `workers` from "
            "the plan, or remove the call from the dataset."
        )

    def look() -> str | None:
        states = rng.global_random_states()
        try:
            sample = dataset[0]
            drawn = rng.generator_that_advanced(states)
            other = None if loader.num_workers or drawn else _other_in_worker(loader, sample)
        finally:
            rng.restore(states)
        if drawn is not None:
            return (
                f"{DRAWS}{drawn}, whose state differs in worker processes. Remove `workers` from "
                "the plan, or draw no random numbers in the dataset."
            )
        if _requires_grad(sample):
            return (
                "a sample has requires_grad=True, and autograd does not work across worker "
                "processes. Return `tensor.detach()` from `__getitem__` of the dataset."
            )
        if other is None and not loader.num_workers:
            other = _other_in_threads(lambda: dataset[0], sample, threads)
        return other

    # A file that is opened here would be shared by all workers, and its position with it.
    return in_child(look) if can_fork() else look()


def _other_in_worker(loader: Any, sample: Any) -> str | None:
    """Return why a batch would have other strides if a worker made it, None if it would not.

    In a worker torch stacks into shared memory, whatever the memory format of the samples is.
    """
    if Reach(loader.collate_fn).problem is not None:
        return None
    # Nobody else runs in this process: it is a forked child, or a script that has no workers yet.
    strides, before = [], _worker._worker_info
    try:
        for info in (None, _worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=loader.dataset)):
            _worker._worker_info = info
            strides.append([each.stride() for each in tensors(loader.collate_fn([sample] * 2))])
    except Exception:
        log.debug("two samples could not be collated", exc_info=True)
        return None
    finally:
        _worker._worker_info = before
    if strides[0] == strides[1]:
        return None
    return (
        "a batch that a worker process makes has other strides than one of the training process. "
        "Return `tensor.contiguous()` from `__getitem__` of the dataset, or remove `workers` from "
        "the plan."
    )


def why_not_in_one_thread(dataset: Any) -> str | None:
    """Return why samples would be others in a worker, which computes in one thread.

    Args:
        dataset: one of the engine's, which seeds every sample that draws.
    """
    threads = torch.get_num_threads()
    if threads == 1 or not can_fork():
        return None

    def make() -> Any:
        rng.reseed(0)
        return dataset[0]

    return in_child(lambda: _other_in_threads(make, make(), threads))


def _other_in_threads(make: Callable[[], Any], sample: Any, threads: int) -> str | None:
    """Return why a sample would be another one in a worker, which computes in one thread.

    Args:
        make: makes it.
        sample: made in as many threads as torch has in this process.
        threads: those that torch has in the script's process.
    """
    if threads == 1:
        return None
    here = torch.get_num_threads()
    try:
        other = _made_in_threads(make, threads if here == 1 else 1)
        if samples_equal(sample, other, unknown=True):
            return None
    except Exception:
        log.debug("a sample could not be compared", exc_info=True)
        return None
    finally:
        torch.set_num_threads(here)
    return (
        "a sample has other values if torch computes it in one thread, as worker processes do, "
        f"than in {threads} threads. Compute it with numpy in the dataset, or remove `workers` "
        "from the plan."
    )


def _made_in_threads(make: Callable[[], Any], count: int) -> Any:
    """Return what is made where torch computes in so many threads.

    It is made in a new thread: in a forked child the main thread's helpers are gone, and are waited
    for for ever.
    """

    def made() -> Any:
        torch.set_num_threads(count)
        return make()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(made).result()


def asks_for_its_worker(looked: Reach | None) -> bool:
    """True if the user's code that reads samples looks at the worker process that it runs in.

    Args:
        looked: what the data set reaches, None if that is not known.
    """
    return looked is not None and "get_worker_info" in looked.names


def changes_when_read(dataset: Any) -> str | None:
    """Read a sample several times, in a forked child; return what differs in words.

    The first time may open a file. None if nothing changes, and the same numbers are drawn.
    """

    def look() -> str | None:
        first = _read_seeded(dataset)
        found, until = Reach(dataset), time.monotonic() + _AGAIN_S
        if found.has_generator:
            return found.problem
        for _ in range(_AGAIN):
            problem = _other_than(first, dataset, found.watched)
            if problem is not None or time.monotonic() > until:
                return problem
        return None

    return in_child(look)


def _other_than(first: tuple[Any, Any], dataset: Any, watched: ChangeWatch) -> str | None:
    """Read the sample again; return how that differs from the first time, None if it does not."""
    sample, drawn = first
    again, _ = _read_seeded(dataset)
    changed = watched.find_rebinding()
    if changed is not None:
        return (
            f"reading a sample changes {changed}, so samples may depend on those read before. Make "
            "`__getitem__` leave the dataset unchanged."
        )
    moved = rng.generator_that_advanced(drawn)
    if moved is not None:
        return (
            f"the first sample that a process reads seeds {moved}, or draws other numbers from it "
            "than later ones do. Seed it where the script starts, and draw the same numbers for "
            "every sample."
        )
    if samples_equal(sample, again, unknown=True):
        return None
    return (
        "a sample that is read twice with the same random numbers is not the same, so samples may "
        "depend on those read before. Make `__getitem__` depend on nothing but its index."
    )


def _read_seeded(dataset: Any) -> tuple[Any, tuple[Any, Any, torch.Tensor]]:
    """Return a sample that is read with seeded generators, and their states afterwards."""
    rng.reseed(_SEED)
    # Another seed than torch's: a data set that seeds Python's generator by torch's then shows.
    random.seed(_SEED + 1)
    sample = copy.deepcopy(dataset[0])
    return sample, rng.global_random_states()


def _requires_grad(sample: Any) -> bool:
    return any(getattr(leaf, "requires_grad", False) for leaf in leaves(sample))


def draws_between_batches(loader: Any) -> str | None:
    """Look whether a sampler of the user's own draws as it goes: workers would ask it too early."""
    # The copy draws as the script's sampler will, before its first batch too.
    before = rng.global_random_states()
    try:
        return _draws_as_it_goes(loader)
    finally:
        rng.restore(before)


def _draws_as_it_goes(loader: Any) -> str | None:
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    inner = getattr(sampler, "sampler", sampler)
    if all(type(each).__module__.startswith("torch.") for each in (sampler, inner)):
        return None
    if not hasattr(inner, "__dict__") and not hasattr(sampler, "__dict__"):
        return None
    try:
        # The data set may be large, and is not what is looked at.
        order = iter(copy.deepcopy(sampler, {id(loader.dataset): loader.dataset}))
        next(order)
        states = rng.global_random_states()
        for _ in islice(order, _LOOKED_AT):
            pass
    except Exception as error:
        return (
            f"the sampler could not be copied and iterated ({type(error).__name__}: {error}), so "
            "it is unknown whether it draws random numbers. Make `iter(copy.deepcopy(sampler))` "
            "work, or use a plan without this technique."
        )
    drawn = rng.generator_that_advanced(states)
    if drawn is None:
        return None
    return (
        f"the sampler draws from {drawn} between batches, and worker processes need the indices "
        "ahead of time. Give the sampler a `torch.Generator` of its own."
    )
