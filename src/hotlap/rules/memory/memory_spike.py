"""One line makes large tensors that live for a moment, and with them the peak of the whole run.

What it sees   temporaries that one line of the script makes and that are freed in the same step, at
               the peak, a fifth of it or more.
Why it costs   a run needs the memory of its peak, however short that is.
What to do     compute it in parts, in place, or by an operator that needs no intermediate
               (`torch.cdist` for differences of all pairs, `scaled_dot_product_attention`).
Evidence       bytes of the temporaries at the peak, and the peak as it would be without them.
"""

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.trace.memory_schema import Block, MemoryTrace, is_alive

_SHARE = 0.2
"""Of the peak, that one line must add."""


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find the lines whose temporaries make the peak."""
    peak = trace.settled_peak()
    at = trace.settled_peak_at
    alive = [
        block for block in trace.blocks if _is_short_lived(trace, block) and is_alive(block, at)
    ]
    found = []
    for where in sorted({block.where for block in alive if block.where}):
        numbers = [
            number
            for number, block in enumerate(trace.blocks)
            if block.where == where and _is_short_lived(trace, block)
        ]
        saves = peak - trace.settled_peak(numbers)
        if saves < _SHARE * peak:
            continue
        mine = [block for block in alive if block.where == where]
        total = sum(block.bytes for block in mine)
        largest = max(mine, key=lambda block: block.bytes)
        found.append(
            MemoryFinding(
                where=where,
                cost_bytes=total,
                grows=False,
                holder="",
                evidence=(
                    f"{size(total)} of temporaries are alive at the peak, {size(largest.bytes)} of "
                    f"them made by `{largest.operator}`; without them the peak is {size(saves)} "
                    "lower"
                ),
                remedy=(
                    "compute it in parts or in place, or use an operator that needs no intermediate"
                ),
            )
        )
    return found


def _is_short_lived(trace: MemoryTrace, block: Block) -> bool:
    """True if it was made and freed between the same two marks, outside of hotlap's reach."""
    if block.kind != "temporaries" or block.freed is None or not trace.is_counted(block):
        return False
    own = block.phase in ("backward", "optimizer")
    return not own and trace.position(block.made)[0] == trace.position(block.freed)[0]


RULE = MemoryRule(name="memory_spike", find=find)
