"""Tensors of every step are kept, in a list for one.

What it sees   storages that steps make and that are still alive two and more steps later, in
               every step.
Why it costs   memory grows with the length of the run; with their autograd graphs, the outputs
               keep what the forward saved, too.
What to do     keep what is needed of them: a number, a sum, or a copy on the host; detach it; or
               empty the list once it was used.
Evidence       bytes that each step leaves behind, the line that made them, and the variable that
               holds them; in how many of the observed steps it grew, and a line that removes from
               it, if there is one: it may then be bounded, and the confidence is low. A `deque`
               with a `maxlen` is never reported.
"""

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import (
    bound,
    bytes_per_step,
    confidence,
    growths,
    is_large,
    is_loss,
    made_at,
    tensor_bytes,
    unexplained,
)
from hotlap.trace.memory_schema import Growth, MemoryTrace


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find containers that hold tensors of earlier steps, and tensors that nothing known holds."""
    found = []
    for growth in growths(trace):
        per_step = bytes_per_step(trace, growth)
        tensors = tensor_bytes(trace, growth)
        if is_loss(trace, growth) or tensors <= growth.host_bytes or not is_large(trace, per_step):
            continue
        lines = made_at([trace.blocks[number] for number in growth.blocks])
        graph = ", with their autograd graphs" if growth.has_graph else ""
        found.append(
            MemoryFinding(
                where=growth.where,
                cost_bytes=round(per_step),
                grows=True,
                holder=growth.name,
                evidence=(
                    f"`{growth.name}` ({growth.kind}) keeps {size(tensors)} of tensors of each "
                    f"step{graph}, made at {lines}; {bound(growth)}"
                ),
                remedy=_remedy(growth),
                confidence=confidence(growth),
            )
        )
    for where, numbers in unexplained(trace).items():
        per_step = trace.of_one_step(numbers)
        if is_large(trace, per_step):
            found.append(
                MemoryFinding(
                    where=where,
                    cost_bytes=round(per_step),
                    grows=True,
                    holder="",
                    evidence=(
                        f"{size(per_step)} of tensors made here stay alive in each step; no "
                        "variable of the script was found that holds them"
                    ),
                    remedy="find what refers to them, such as an object of a library",
                    confidence="medium",
                )
            )
    return found


def _remedy(growth: Growth) -> str:
    if growth.kind == "lru_cache":
        return f"give `{growth.name}` a `maxsize`, or pass it no tensors and return none from it"
    return (
        "keep only what is needed of them (a number, a sum), detached, or clear "
        f"`{growth.name}` once it was used"
    )


RULE = MemoryRule(name="retained_outputs", find=find)
