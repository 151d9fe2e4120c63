"""Whether samples and their order are the same where worker processes read."""

import copy
from itertools import islice
from typing import Any

from hotlap import rng
from hotlap.feed.purity.in_child import can_fork, in_child
from hotlap.feed.purity.own_code import methods_reached, names_in
from hotlap.feed.purity.reach import Reach
from hotlap.nested import leaves

DRAWS = "reading a sample draws from "
"""A reason that begins so speaks of random augmentation."""
_LOOKED_AT = 4
"""Batches that a sampler is asked for to see whether it draws as it goes."""


def why_not_in_workers(loader: Any) -> str | None:
    """Return why samples would be others in another number of workers, None if nothing shows."""
    dataset = loader.dataset
    if asks_for_its_worker(dataset):
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
        finally:
            rng.restore(states)
        if drawn is not None:
            return f"{DRAWS}{drawn}, whose state differs in worker processes"
        if _requires_grad(sample):
            return "a sample has requires_grad=True. Return `tensor.detach()` from the dataset."
        return None

    # A file that is opened here would be shared by all workers, and its position with it.
    return in_child(look) if can_fork() else look()


def asks_for_its_worker(dataset: Any) -> bool:
    """True if the data set's own code looks at the worker process that it is read in."""
    methods = methods_reached(type(dataset)).values()
    return any("get_worker_info" in names_in(method.__code__) for method in methods)


def changes_when_read(dataset: Any) -> str | None:
    """Read a sample twice, in a forked child; return what the second time changes, in words.

    The first one may open a file. None if nothing changes.
    """

    def look() -> str | None:
        dataset[0]
        watched = Reach(dataset).watched
        dataset[0]
        changed = watched.find_rebinding()
        return None if changed is None else f"reading a sample changes {changed}"

    return in_child(look)


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
        return f"the sampler cannot be checked ({type(error).__name__}: {error})"
    drawn = rng.generator_that_advanced(states)
    if drawn is None:
        return None
    return (
        f"the sampler draws from {drawn} between batches, and worker processes need the indices "
        "ahead of time. Give the sampler a `torch.Generator` of its own."
    )
