"""A tensor is replaced in every step by itself and more, as `torch.cat([seen, outputs])` does.

What it sees   storages of one line that are as much larger in each step as in the step before, and
               each of which lives until the next one is there.
Why it costs   memory grows with the length of the run, twice as fast at the moment of the copy, and
               each step copies all that was collected before: n steps copy n * n / 2 pieces.
What to do     collect the pieces in a list and call `torch.cat` once, on the host if they are many;
               or allocate the whole tensor first and write into it; or keep a number or a sum.
Evidence       sizes of the storages in the observed steps. Pieces of different sizes are not found.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import is_large
from hotlap.trace.memory_schema import WARM_UP, Block, MemoryTrace

_LEAST_STEPS = 4
"""In a row: lengths of sorted batches may grow alike for some steps."""


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find lines whose tensor grows by the same bytes in every step."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, block in enumerate(trace.blocks):
        if block.where and block.step > WARM_UP and trace.is_counted(block):
            places[block.where, block.operator].append(number)
    found = []
    for (where, operator), numbers in places.items():
        blocks = [trace.blocks[number] for number in numbers]
        growth = _growth(blocks)
        if not growth or not is_large(trace, growth):
            continue
        last = blocks[-1]
        holder = next((h.name for h in trace.holdings if {*h.blocks} & {*numbers}), "")
        named = f"`{holder}`" if holder else "a tensor made here"
        found.append(
            MemoryFinding(
                where=where,
                cost_bytes=growth,
                grows=True,
                holder=holder,
                evidence=(
                    f"{named} is replaced by a copy in each step ({operator}) that is "
                    f"{size(growth)} larger, in {len(blocks)} observed steps in a row: "
                    f"{size(last.bytes)} at the last one"
                ),
                remedy=(
                    "append to a list and call `torch.cat` once after the loop, or write into a "
                    "tensor that was allocated before it"
                ),
            )
        )
    return found


def _growth(blocks: Sequence[Block]) -> int:
    """Return by how many bytes each storage is larger than the one before, 0 if not all alike."""
    pairs = list(pairwise(blocks))
    differences = {after.bytes - before.bytes for before, after in pairs}
    is_kept = all(
        after.step == before.step + 1 and (before.freed is None or before.freed > after.made)
        for before, after in pairs
    )
    if len(blocks) < _LEAST_STEPS or len(differences) != 1 or not is_kept:
        return 0
    return max(0, differences.pop())


RULE = MemoryRule(name="growing_tensor", find=find)
