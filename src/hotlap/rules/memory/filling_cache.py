"""A dataset keeps the samples that it has read: a cache that fills in the first epoch, no leak.

What it sees   a container of a dataset's, with a key or a place for each sample, that holds more
               samples after each step, and fewer than the dataset has.
Why it costs   it grows until every sample was read once, which is at the end of the first epoch,
               and stays as large. The first steps do not show that: a run may fit into memory at
               first, and not at the end. Each worker process of a DataLoader fills a cache of its
               own.
What to do     nothing where the full cache fits into memory. Otherwise keep samples in a smaller
               form (`uint8`, encoded bytes), in a file that is mapped, or only some of them. In a
               recipe `resident` keeps samples within a limit.
Evidence       samples of the dataset, and bytes of one in the cache. The bytes of the finding are
               those of the full cache.
"""

from hotlap.rules.memory.record import FLOOR, MemoryFinding, MemoryRule, size
from hotlap.rules.memory.retention import LEAST_BYTES, caches
from hotlap.trace.memory_schema import MemoryTrace


def find(trace: MemoryTrace) -> list[MemoryFinding]:
    """Find caches of datasets that are not full yet."""
    found = []
    for growth, each in caches(trace):
        samples = growth.samples or 0
        if trace.planned_steps is not None:
            samples = min(samples, round(growth.items * trace.planned_steps))
        full = round(each * samples)
        if full < max(LEAST_BYTES, FLOOR * trace.peak.bytes):
            continue
        found.append(
            MemoryFinding(
                where=growth.where,
                cost_bytes=full,
                grows=False,
                holder=growth.name,
                evidence=(
                    f"`{growth.name}` ({growth.kind}) keeps each sample that its dataset reads, "
                    f"{size(each)} each; with {samples:,} samples it is full, takes {size(full)}, "
                    "and grows no further: a cache, not a leak"
                ),
                remedy=(
                    f"nothing if {size(full)} fit into memory, once in each worker process; "
                    "otherwise keep samples in a smaller form, in a mapped file, or only some"
                ),
            )
        )
    return found


RULE = MemoryRule(name="filling_cache", find=find)
