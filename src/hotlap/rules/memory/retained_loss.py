"""Losses are kept together with their autograd graphs, so that no step's graph is freed.

What it sees   a variable, or a list, of numbers whose graphs reach further back with every step.
Why it costs   a tensor that requires a gradient keeps its graph alive, and the graph keeps every
               tensor that was saved for a backward that has not been run.
What to do     keep the number: `total += loss.item()`, or `loss.detach()` where a device is not to
               be waited for.
Evidence       tensors and nodes of graphs that each step leaves behind, and the variable that
               holds them. A node is counted as 400 bytes.
"""

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import (
    bytes_per_step,
    growths,
    is_loss,
    made_at,
    tensor_bytes,
)
from hotlap.trace.memory_schema import MemoryTrace


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find variables that hold the graphs of earlier steps."""
    found = []
    for growth in growths(trace):
        if not is_loss(growth):
            continue
        tensors = tensor_bytes(trace, growth)
        lines = made_at([trace.blocks[number] for number in growth.blocks])
        saved = f", and {size(tensors)} of tensors made at {lines}" if tensors else ""
        found.append(
            MemoryFinding(
                where=growth.where,
                cost_bytes=round(bytes_per_step(trace, growth)),
                grows=True,
                holder=growth.name,
                evidence=(
                    f"`{growth.name}` keeps the autograd graph of every step: each one adds "
                    f"{growth.nodes:.0f} nodes{saved}"
                ),
                remedy="keep the number only: use `.item()`, or `.detach()` to avoid a host sync",
            )
        )
    return found


RULE = MemoryRule(name="retained_loss", find=find)
