"""Facts of a watched run: its loaders, its optimizers, and how many steps it will take."""

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.utils.data import IterableDataset, default_collate

from hotlap.task import LoaderFacts, OptimizerFacts
from hotlap.trace import frames
from hotlap.trace.loaders import WatchedLoader, length_of
from hotlap.trace.rounds import Rounds
from hotlap.trace.schema import Anchor
from hotlap.usercode import is_users

_SEVERAL = 1.5
"""Steps for each batch from which on a run is taken to use a batch for several of them."""


def device_of(roots: list[Any]) -> str:
    """Return the kind of the device that the trained modules are on."""
    return place_of(roots).partition(":")[0]


def place_of(roots: list[Any]) -> str:
    """Return the device that the trained modules are on, as torch names it."""
    for root in roots:
        for parameter in root.parameters():
            return str(parameter.device)
    return "cpu"


def count_data_parallel(roots: list[Any]) -> int | None:
    """Return the devices of the torch.nn.DataParallel in the trained modules, None without one."""
    for root in roots:
        for module in root.modules():
            if isinstance(module, torch.nn.DataParallel):
                return len(module.device_ids)
    return None


def count_steps_per_epoch(training: list[WatchedLoader], steps: int) -> int | None:
    """Return the steps between two starts of the training loader, or what its length says."""
    if not training:
        return None
    known = training[0]
    if len(known.starts) > 1:
        return known.starts[-1] - known.starts[-2]
    length = length_of(known.loader)
    if length is None or known.batches == 0 or steps == 0:
        return None
    batches = sum(each.batches for each in training)
    if steps > _SEVERAL * batches:
        # Several steps are taken with a batch, as of a critic.
        return length * round(steps / batches)
    # Gradient accumulation takes several batches a step.
    batches_per_step = max(1, round(known.batches / steps))
    return -(-length // batches_per_step)


def plan_steps(
    loops: list[frames.Loop],
    stack: list[frames.Function],
    training: list[WatchedLoader],
    per_epoch: int | None,
    before: Sequence[Sequence[frames.Loop]] = (),
) -> tuple[int | None, str]:
    """Return the steps of the whole run as its counted loops say, and how that was found.

    Args:
        loops: around a step, innermost first.
        stack: the functions that ran then.
        training: loaders of training samples.
        per_epoch: steps of an epoch, if known.
        before: the same of each step before that one, from the first on.
    """
    if all(loop.total is None for loop in loops):
        return None, "no counted loop (`for ... in range(...)`) goes around the step"
    by_passes = _plan_by_passes([*before, loops])
    if by_passes is not None:
        return by_passes
    if training and per_epoch is None:
        return None, "the number of batches in an epoch is not known"
    outer, each = loops, ""
    if training:
        known = training[0]
        line = int(known.where.rpartition(":")[2] or 0)
        depth = stack.index(known.function) if known.function in stack else -1
        outer = [loop for loop in loops if (loop.depth, -loop.line) > (depth, -line)]
        asks = [loop for loop in outer if loop.is_while and loop.depth == depth]
        own = [loop for loop in loops if (loop.line, loop.depth) == (line, depth)]
        is_for = any(not loop.is_while for loop in own)
        if asks and not is_for:
            # It asks for the batches itself, by `next(...)`, until there are none.
            outer.remove(asks[0])
        if depth < 0:
            # The batches come from a generator of the user's: one of these loops is over it.
            over = next((loop for loop in outer if loop.total is None), None)
            outer = [loop for loop in outer if loop.total is not None or loop.is_while]
            outer = [loop for loop in outer if loop is not over]
        if not outer:
            return per_epoch, "one pass over the loader: no counted loop goes around it"
        each = f", {per_epoch} steps each"
    total = per_epoch if training and per_epoch is not None else 1
    for loop in outer:
        if loop.total is None:
            return None, f"how many times {loop.where} goes round is not known"
        total *= loop.total
    rounds = " x ".join(f"{loop.where} goes round {loop.total} times" for loop in outer)
    return total, f"{rounds}{each}"


def _plan_by_passes(seen: Sequence[Sequence[frames.Loop]]) -> tuple[int, str] | None:
    """Return the steps by how far counted loops go from step to step, None if that is not known.

    Then no loop over batches goes around the step: they come from `next(...)`, or from nowhere.

    Args:
        seen: the loops around each of the first steps.
    """
    gaps = [_passes_between(one, other) for one, other in itertools.pairwise(seen)]
    known = [gap for gap in gaps if gap is not None]
    if not gaps or len(known) < len(gaps):
        return None
    # One of them may have skipped an update, as a scaler does.
    each, loops = min(known), seen[-1]
    left = max(0, prod(loop.total or 1 for loop in loops) - _passes(loops))
    rounds = " x ".join(f"{loop.where} goes round {loop.total} times" for loop in loops)
    more = f", {each} times for each step" if each > 1 else ""
    return len(seen) + left // each, rounds + more


def _passes_between(before: Sequence[frames.Loop], loops: Sequence[frames.Loop]) -> int | None:
    """Return the passes of counted loops from one step to the next, None if they do not tell."""
    is_same = [loop.where for loop in loops] == [loop.where for loop in before]
    if not is_same or not loops or any(loop.total is None for loop in loops):
        return None
    # Two loops may share a variable: then nothing is known of the outer one's.
    is_inner = loops[0].done > before[0].done
    if is_inner and any(a.done != b.done for a, b in zip(before[1:], loops[1:], strict=True)):
        return None
    passes = _passes(loops) - _passes(before)
    return passes if passes >= 1 else None


def _passes(loops: Sequence[frames.Loop]) -> int:
    """Return the passes of the innermost of counted loops, the one that runs included."""
    passes, inside = 1, 1
    for loop in loops:
        passes += inside * loop.done
        inside *= loop.total or 1
    return passes


def plan_by_rounds(rounds: Rounds, loops: list[frames.Loop]) -> tuple[int, str] | None:
    """Return the steps of the whole run by those of the first round of its outermost loop.

    None if that is not known, or if an uncounted loop goes around it.
    """
    outer = rounds.loop
    if rounds.steps is None or outer is None or outer.total is None:
        return None
    if not loops or loops[-1].where != outer.where:
        return None
    each = f"{outer.where} goes round {outer.total} times, {rounds.steps} steps each"
    return outer.total * rounds.steps, each


def loader_facts(known: WatchedLoader, steps: int) -> LoaderFacts:
    """Return what is known of a loader when the watch ends, after so many steps."""
    ends = [*known.starts[1:], steps]
    taken = [end > start for start, end in zip(known.starts, ends, strict=True)]
    loader = known.loader
    dataset = loader.dataset
    inner = dataset
    while not is_users(_code_file(inner)) and hasattr(inner, "dataset"):
        inner = inner.dataset
    return LoaderFacts(
        dataset=f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        length=length_of(dataset),
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        map_style=not isinstance(dataset, IterableDataset),
        plain_collate=loader.collate_fn is default_collate,
        training=known.training,
        where=known.where,
        getitem=getitem_of(type(inner)),
        batches=length_of(loader),
        collates_samples=loader.collate_fn is not default_collate,
        orders=_of_passes(known.orders, taken),
        draws=_of_passes(known.draws, taken),
    )


def _of_passes(
    found: Sequence[tuple[int, int] | None], taken: Sequence[bool]
) -> tuple[tuple[int, int], ...]:
    """Return what is known of the passes in which steps were taken."""
    both = zip(found, taken, strict=True)
    return tuple(each for each, is_taken in both if is_taken and each is not None)


def getitem_of(kind: type) -> str:
    """Return `file:line` of a data set's `__getitem__`, empty if it is not a user's function."""
    code = getattr(getattr(kind, "__getitem__", None), "__code__", None)
    if code is None or not is_users(code.co_filename):
        return ""
    return f"{frames.shorten_path(code.co_filename)}:{code.co_firstlineno}"


def _code_file(dataset: Any) -> str:
    getitem = getattr(type(dataset), "__getitem__", None)
    code = getattr(getitem, "__code__", None)
    return code.co_filename if code else "<none>"


def optimizer_facts(optimizer: Any, where: str) -> OptimizerFacts:
    """Return what is known of an optimizer that is stepped at `where`."""
    groups = optimizer.param_groups
    kind = type(optimizer)
    if any(group.get("fused") for group in groups):
        implementation = "fused"
    elif any(group.get("foreach") for group in groups):
        implementation = "foreach"
    else:
        implementation = "default" if kind.__module__.startswith("torch.optim") else "custom"
    parameters = [p for group in groups for p in group["params"]]
    return OptimizerFacts(
        name=f"{kind.__module__}.{kind.__qualname__}",
        implementation=implementation,
        parameters=len(parameters),
        elements=sum(p.numel() for p in parameters),
        where=where,
        sparse=any(p.grad is not None and p.grad.is_sparse for p in parameters),
    )


def anchor_of(steps: int, backwards: int, batches: int, optimizers: int) -> Anchor:
    """Return how sure it is that a step is a call of `optimizer.step`, by what was counted.

    Args:
        steps: of the optimizer that steps first.
        backwards: outermost ones, all of them.
        batches: read of training loaders.
        optimizers: that were stepped.
    """
    if optimizers == 1 and abs(backwards - steps) <= 1 and abs(batches - steps) <= 3:
        confidence = "high"
    elif steps and backwards >= steps:
        confidence = "medium"
    else:
        confidence = "low"
    votes = {"optimizer_steps": steps, "backwards": backwards, "training_batches": batches}
    return Anchor("optimizer.step", confidence, votes)
