"""PyTorch's allocator of CUDA memory asks the driver again and again, or holds much it cannot use.

What it sees   on a GPU, after the first two steps: calls of cudaMalloc in at least half of the
               steps; calls that failed and were repeated with an empty cache; a peak of reserved
               memory that is far above that of allocated memory; `torch.cuda.empty_cache()` in at
               least half of the steps.
Why it costs   cudaMalloc and cudaFree wait for the device, and what is reserved in pieces of the
               wrong size is used by nobody. `empty_cache` frees nothing that is alive: the next
               step asks the driver for the same memory again.
What to do     remove `empty_cache` from the loop; pad batches to few sizes (buckets) where shapes
               change; set `PYTORCH_ALLOC_CONF=expandable_segments:True` (technique `allocator`).
               On a CPU there is no such allocator: the C library gives large blocks back and asks
               for them again, which `hotlap diagnose` measures (technique `host_allocator`).
Evidence       the allocator's own counters, and the line that empties the cache. The bytes are
               what is reserved and not allocated, each at its peak.
"""

import itertools

from hotlap.rules.memory.record import MemoryFinding, MemoryRule, size
from hotlap.trace.memory_schema import WARM_UP, AllocatorStep, MemoryTrace

_SHARE = 0.5
"""Of the steps that must ask the driver, or empty the cache."""
_UNUSED = 0.25
"""Share of reserved memory that must be unused at the peak."""
_LEAST_BYTES = 256 * 2**20
"""Unused memory below this is what any allocator keeps."""


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find a device whose allocator asks the driver in its steps, or wastes what it has."""
    rows = [row for row in trace.allocator if row.step >= WARM_UP]
    if trace.device_peak is None or len(rows) < 2:
        return []
    peak = trace.device_peak
    unused = max(0, peak.reserved_bytes - peak.allocated_bytes)
    steps = len(rows) - 1
    emptied = [call for call in trace.cache_calls if rows[0].step < call.step <= rows[-1].step]
    is_emptied = len({call.step for call in emptied}) >= _SHARE * steps
    facts = _facts(rows, steps)
    is_unused = unused >= max(_LEAST_BYTES, _UNUSED * peak.reserved_bytes)
    if is_unused:
        facts.append(
            f"{size(peak.reserved_bytes)} were reserved at the most and "
            f"{size(peak.allocated_bytes)} allocated; after the last step, "
            f"{size(rows[-1].inactive_split_bytes)} are free parts of segments that are still used"
        )
    if is_emptied:
        facts.insert(0, f"the cache is emptied {len(emptied)} times in {steps} steps")
    if not facts:
        return []
    where = emptied[-1].where if is_emptied else ""
    return [
        MemoryFinding(
            where=where or _allocating_line(trace),
            cost_bytes=unused,
            grows=False,
            holder="",
            evidence="; ".join(facts),
            remedy=_remedy(where if is_emptied else None),
            confidence="high" if is_emptied else "medium",
        )
    ]


def _facts(rows: list[AllocatorStep], steps: int) -> list[str]:
    first, last = rows[0], rows[-1]
    facts = []
    asking = sum(
        after.device_allocs > before.device_allocs for before, after in itertools.pairwise(rows)
    )
    if asking >= _SHARE * steps:
        allocs = (last.device_allocs - first.device_allocs) / steps
        frees = (last.device_frees - first.device_frees) / steps
        facts.append(
            f"each step asks the driver {allocs:.1f} times and gives back {frees:.1f} times"
        )
    if last.retries > first.retries:
        facts.append(
            f"{last.retries - first.retries} requests failed in {steps} steps, and were repeated "
            "after the cache had been freed"
        )
    return facts


def _remedy(emptied_at: str | None) -> str:
    settings = (
        "pad to few sizes (buckets) if shapes change between steps, and set "
        "PYTORCH_ALLOC_CONF=expandable_segments:True"
    )
    if emptied_at is None:
        return settings
    line = f" at {emptied_at}" if emptied_at else ""
    return f"remove `empty_cache()`{line} from the loop; if memory still runs short, {settings}"


def _allocating_line(trace: MemoryTrace) -> str:
    """Return the line that allocates most of what is alive at the peak, outside the set-up."""
    sizes: dict[str, int] = {}
    for number in trace.peak.blocks:
        block = trace.blocks[number]
        if block.where:
            sizes[block.where] = sizes.get(block.where, 0) + block.bytes
    return max(sizes, key=lambda where: sizes[where], default="")


RULE = MemoryRule(name="allocator_churn", find=find)
