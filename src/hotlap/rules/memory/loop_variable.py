"""A variable of the loop keeps tensors of the step before alive while the next step runs.

What it sees   local variables that, when a forward begins, still hold what the step before made,
               and a peak that would be lower without.
Why it costs   a variable holds its tensor until it is assigned again, which is after the next
               forward has made its own: both are alive at the peak.
What to do     `del` the variable at the end of the loop's body, or put the body into a function.
               Where the code after the loop reads it, keep only what that needs of it. Where the
               next pass reads it before it assigns it, the memory is needed: nothing is reported.
Evidence       bytes that the variable holds, and the peak as it would be had they been freed with
               the end of the step.
"""

from hotlap.rules.memory.record import FLOOR, MemoryFinding, MemoryRule, size
from hotlap.trace.memory_schema import Holding, MemoryTrace

_NOT_MADE_ANEW = ("parameters", "optimizer", "gradients", "retained", "other")


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find variables without whose old values the peak is lower."""
    by_name: dict[tuple[str, str], list[Holding]] = {}
    for holding in trace.holdings:
        # The next pass needs it.
        if holding.reader == "next_pass":
            continue
        by_name.setdefault((holding.name, holding.where), []).append(holding)
    peak = trace.settled_peak()
    needed = _held_by_others(trace)
    found = []
    for (name, where), holdings in by_name.items():
        spans = [
            (number, each.begin, trace.blocks[number].freed or len(trace.events))
            for each in holdings
            for number in _old_blocks(trace, each)
            if (each.step, number) not in needed
        ]
        lower = trace.settled_peak(spans=spans)
        if peak - lower < FLOOR * peak:
            continue
        last = max(holdings, key=lambda each: each.step)
        total = sum(
            trace.blocks[number].bytes
            for number in _old_blocks(trace, last)
            if (last.step, number) not in needed
        )
        found.append(
            MemoryFinding(
                where=where,
                cost_bytes=total,
                grows=False,
                holder=name,
                evidence=(
                    f"`{name}` keeps {size(total)} of the step before alive during the next "
                    f"forward; without it the peak is {size(peak - lower)} lower"
                ),
                remedy=_remedy(name, last.reader),
            )
        )
    return found


def _held_by_others(trace: MemoryTrace) -> set[tuple[int, int]]:
    """Return (step, storage) that `del` would not free: what the next pass reads holds it, too, or
    a container that grows, which another rule reports."""
    growing = {number for growth in trace.growths for number in growth.blocks}
    return {
        (holding.step, number)
        for holding in trace.holdings
        for number in holding.blocks
        if holding.reader == "next_pass" or number in growing
    }


def _remedy(name: str, reader: str) -> str:
    if reader == "after_loop":
        return (
            f"keep only what is read of `{name}` after the loop (a number, or a small copy), or "
            "make the loop's body a function that returns it"
        )
    return f"`del {name}` at the end of the loop's body, or make the body a function"


def _old_blocks(trace: MemoryTrace, holding: Holding) -> list[int]:
    """Return what the variable held of the step before, and of no earlier one."""
    return [number for number in holding.blocks if trace.blocks[number].kind not in _NOT_MADE_ANEW]


RULE = MemoryRule(name="loop_variable", find=find)
