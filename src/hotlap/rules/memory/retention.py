"""What grows from step to step, sorted by what it is: shared by the rules about retained memory."""

from collections.abc import Sequence

from hotlap.rules.memory.record import FLOOR
from hotlap.trace.memory_schema import Block, Growth, MemoryTrace

NODE_BYTES = 400
"""About what a node of an autograd graph takes, without the tensors that it saves."""
_USUAL_STEPS = 1000
"""Steps of a run whose length is not known."""
LEAST_BYTES = 2**20
"""Growth of a whole run that is worth a report: a list of numbers, one for each step, is not."""
_LEAST_STEPS = 3
"""Steps that must have left something behind."""
_NEWEST = 3
"""Steps before the last one: what newer ones leave behind is not known yet, nor counted if only
every second step does."""


def bytes_per_step(trace: MemoryTrace, growth: Growth) -> float:
    """Return how much memory each step adds."""
    return tensor_bytes(trace, growth) + growth.host_bytes + NODE_BYTES * growth.nodes


def tensor_bytes(trace: MemoryTrace, growth: Growth) -> float:
    """Return how much memory of tensors each step adds."""
    steps = {trace.blocks[number].step for number in growth.blocks}
    return trace.of_one_step(growth.blocks) if len(steps) >= _LEAST_STEPS else 0.0


def has_graph(growth: Growth) -> bool:
    """True if what is held keeps autograd graphs alive."""
    return growth.kind == "graph" or growth.has_graph


def is_loss(trace: MemoryTrace, growth: Growth) -> bool:
    """True for numbers with graphs, or in storages larger than they are: losses, or their sum."""
    if growth.kind == "graph":
        return True
    is_wide = tensor_bytes(trace, growth) > growth.host_bytes
    return growth.scalars and (growth.has_graph or is_wide)


def bound(growth: Growth) -> str:
    """Say in how many steps it was seen to grow, and what is known of a bound."""
    seen = f"it grew in {growth.steps} of {growth.observed} observed steps"
    if growth.removed:
        return f"{seen}; it may be bounded, see {growth.removed}"
    return f"{seen}, and no statement was found that bounds it"


def confidence(growth: Growth) -> str:
    """Return how sure it is that it grows for as long as the run lasts."""
    return "low" if growth.removed else "high"


def is_large(trace: MemoryTrace, per_step: float) -> bool:
    """True if the run's growth is a share of the peak that is worth a report."""
    steps = trace.planned_steps or _USUAL_STEPS
    return per_step * steps >= max(LEAST_BYTES, FLOOR * trace.peak.bytes)


def growths(trace: MemoryTrace) -> list[Growth]:
    """Return what grows, each tensor with one holder only, the one that holds most first.

    What cannot grow beyond a length that the script has chosen is none of it, nor is the cache of a
    dataset.
    """
    found: list[Growth] = []
    taken = {n for each in trace.growths if _is_bounded(each) for n in each.blocks}
    unbounded = [each for each in trace.growths if not _is_bounded(each)]
    for growth in sorted(unbounded, key=lambda each: -bytes_per_step(trace, each)):
        if growth.blocks and set(growth.blocks) <= taken:
            continue
        taken |= set(growth.blocks)
        found.append(growth)
    return found


def _is_bounded(growth: Growth) -> bool:
    return growth.maxlen is not None or growth.samples is not None


def caches(trace: MemoryTrace) -> list[tuple[Growth, float]]:
    """Return the caches of datasets that fill, each with the bytes of one element."""
    return [
        (growth, bytes_per_step(trace, growth) / growth.items)
        for growth in trace.growths
        if growth.samples is not None and growth.maxlen is None and growth.items
    ]


def unexplained(trace: MemoryTrace) -> dict[str, list[int]]:
    """Return allocation line -> retained storages that no known variable holds.

    Where some of a line's are freed, a buffer of limited length holds the others. Where the last
    steps left none behind, it is full.
    """
    held = {number for growth in trace.growths for number in growth.blocks}
    kept = [(number, each) for number, each in enumerate(trace.blocks) if each.kind == "retained"]
    rotating = {_maker(block) for _, block in kept if block.freed is not None}
    found: dict[str, list[int]] = {}
    for number, block in kept:
        if block.freed is None and number not in held and _maker(block) not in rotating:
            found.setdefault(block.where, []).append(number)
    return {where: numbers for where, numbers in found.items() if _lasts(trace, numbers)}


def _lasts(trace: MemoryTrace, numbers: Sequence[int]) -> bool:
    """True if several steps left something behind, and one of the last that can be known."""
    steps = {trace.blocks[number].step for number in numbers}
    return len(steps) >= _LEAST_STEPS and max(steps) >= trace.steps - _NEWEST


def _maker(block: Block) -> tuple[str, str]:
    return block.where, block.operator


def made_at(blocks: Sequence[Block]) -> str:
    """Return the lines that made most of some storages, as in `train.py:12`."""
    lines: dict[str, int] = {}
    for block in blocks:
        lines[block.where] = lines.get(block.where, 0) + block.bytes
    most = sorted((line for line in lines if line), key=lambda line: -lines[line])
    return " and ".join(most[:2])
