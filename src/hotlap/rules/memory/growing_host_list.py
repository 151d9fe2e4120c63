"""A list, or another container, of Python or numpy objects grows with every step.

What it sees   a container of the script's that is longer after each step, whose elements are no
               tensors.
Why it costs   the memory of the host grows with the length of the run.
What to do     keep a sum, or write the values to a file; give it a length (`deque(maxlen=...)`).
Evidence       elements and bytes that each step adds; in how many of the observed steps, and a
               line that removes from it, if there is one: it may then be bounded, and the
               confidence is low. A `deque` with a `maxlen` is never reported.
"""

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import (
    bound,
    bytes_per_step,
    confidence,
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
        is_host = not is_loss(trace, growth) and growth.host_bytes >= tensor_bytes(trace, growth)
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
                    f"{size(growth.host_bytes)}, in each step; {bound(growth)}"
                ),
                remedy="keep a sum or the last values only, or write the values to a file",
                confidence=confidence(growth),
            )
        )
    return found


RULE = MemoryRule(name="growing_host_list", find=find)
