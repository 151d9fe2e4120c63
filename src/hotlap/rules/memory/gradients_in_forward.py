"""Gradients of the step before are alive while the next forward runs.

What it sees   gradients that are alive when a step's first forward begins, and a peak that would be
               lower without them.
Why it costs   the peak comes at the end of the forward, when the activations are largest; the
               gradients are not needed until the backward.
What to do     call `optimizer.zero_grad()` right after `optimizer.step()`, and leave its
               `set_to_none` as it is.
Evidence       bytes of the gradients, and the peak as it would be had they been freed with the end
               of the step.
"""

from hotlap.rules.memory.record import FLOOR, MemoryFinding, MemoryRule, size
from hotlap.trace.memory_schema import MemoryTrace


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find gradients that outlive their step, if the peak is the higher for it."""
    spans = [span for span in trace.gradients if span.in_forward]
    if not spans:
        return []
    peak = trace.settled_peak()
    lower = trace.settled_peak(spans=[(each.block, each.begin, each.end) for each in spans])
    if peak - lower < FLOOR * peak:
        return []
    last = max(span.begin for span in spans)
    total = sum(trace.blocks[span.block].bytes for span in spans if span.begin == last)
    if trace.keeps_gradients and trace.zeroing:
        words = "they are set to zero, not to None"
        remedy = "remove `set_to_none=False`, and call `zero_grad()` right after `step()`"
    elif trace.zeroing:
        words = "`zero_grad()` is called after the forward"
        remedy = "call `zero_grad()` right after `optimizer.step()`"
    else:
        words = "no `zero_grad()` was seen"
        remedy = "call `optimizer.zero_grad()` right after `optimizer.step()`"
    return [
        MemoryFinding(
            where=trace.zeroing,
            cost_bytes=total,
            grows=False,
            holder="parameter.grad",
            evidence=(
                f"{size(total)} of gradients are alive in the forward: {words}; without them the "
                f"peak is {size(peak - lower)} lower"
            ),
            remedy=remedy,
        )
    ]


RULE = MemoryRule(name="gradients_in_forward", find=find)
