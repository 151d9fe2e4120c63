"""A list, or another container, of Python or numpy objects grows with every step.

What it sees   a container of the script's that is longer after each step, whose elements are no
               tensors.
Why it costs   the memory of the host grows with the length of the run.
What to do     keep a sum, or write the values to a file; give it a length (`deque(maxlen=...)`).
Evidence       elements and bytes that each step adds.
"""

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import (
    bytes_per_step,
    growths,
    is_large,
    is_loss,
    tensor_bytes,
)
from hotlap.trace.memory_schema import MemoryTrace


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find containers on the host that grow."""
    found = []
    for growth in growths(trace):
        per_step = bytes_per_step(trace, growth)
        is_host = not is_loss(growth) and growth.host_bytes >= tensor_bytes(trace, growth)
        if not is_host or not is_large(trace, per_step):
            continue
        found.append(
            MemoryFinding(
                where=growth.where,
                cost_bytes=round(per_step),
                grows=True,
                holder=growth.name,
                evidence=(
                    f"`{growth.name}` ({growth.kind}) grows by {growth.items:,.0f} elements, "
                    f"{size(growth.host_bytes)}, in each step"
                ),
                remedy="keep a sum or the last values only, or write the values to a file",
            )
        )
    return found


RULE = MemoryRule(name="growing_host_list", find=find)
