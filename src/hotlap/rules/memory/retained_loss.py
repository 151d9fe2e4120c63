"""Losses are kept together with their autograd graphs, or with the whole storage they came from.

What it sees   a variable, or a list, of numbers whose graphs reach further back with every step;
               and numbers without a graph that keep a large storage.
Why it costs   a tensor that requires a gradient keeps its graph alive, and the graph keeps every
               tensor that was saved for a backward that has not been run. `loss.detach()` has no
               graph and shares the loss's storage: that of `mse_loss` and `smooth_l1_loss` is as
               large as the model's output, because the mean is written into the first element of
               it.
What to do     keep the number: `total += loss.item()`, or `loss.detach().clone()` where a device is
               not to be waited for.
Evidence       tensors and nodes of graphs that each step leaves behind, and the variable that
               holds them. A node is counted as 400 bytes.
"""

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import (
    bound,
    bytes_per_step,
    confidence,
    growths,
    has_graph,
    is_large,
    is_loss,
    made_at,
    tensor_bytes,
)
from hotlap.trace.memory_schema import Growth, MemoryTrace


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find variables that hold the graphs of earlier steps, or the storages of their losses."""
    found = []
    for growth in growths(trace):
        per_step = bytes_per_step(trace, growth)
        if not is_loss(trace, growth) or not (has_graph(growth) or is_large(trace, per_step)):
            continue
        found.append(
            MemoryFinding(
                where=growth.where,
                cost_bytes=round(per_step),
                grows=True,
                holder=growth.name,
                evidence=_evidence(trace, growth),
                remedy=(
                    "keep the number only: use `.item()`, or `.detach().clone()` to avoid a host "
                    "sync"
                ),
                confidence=confidence(growth),
            )
        )
    return found


def _evidence(trace: MemoryTrace, growth: Growth) -> str:
    tensors = tensor_bytes(trace, growth)
    lines = made_at([trace.blocks[number] for number in growth.blocks])
    if not has_graph(growth):
        return (
            f"`{growth.name}` keeps one number of each step without its graph, and with it a "
            f"storage of {size(tensors)}, made at {lines}: `.detach()` shares the loss's storage, "
            f"and that of a mean over all elements may be as large as these; {bound(growth)}"
        )
    saved = f", and {size(tensors)} of tensors made at {lines}" if tensors else ""
    known = f"; {bound(growth)}" if growth.kind != "graph" else ""
    return (
        f"`{growth.name}` keeps the autograd graph of every step: each one adds "
        f"{growth.nodes:.0f} nodes{saved}{known}"
    )


RULE = MemoryRule(name="retained_loss", find=find)
