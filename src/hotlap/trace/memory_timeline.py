"""The memory of the observed steps over time, by kind, as JSON: what a picture is drawn from."""

from typing import Any

from hotlap.trace.memory_schema import KINDS, MemoryTrace

_MOST_COLUMNS = 480


def timeline_of(trace: MemoryTrace) -> dict[str, Any]:
    """Return the bytes of each kind over the allocations and frees, in their order.

    Returns:
        `events` (the place of each column), `kinds` (kind -> bytes in each column, at the moment at
        which most was alive in it), `step_ends`, `steps` and `peak`.
    """
    width = max(1.0, len(trace.events) / _MOST_COLUMNS)
    kinds = dict.fromkeys(KINDS, 0)
    found: dict[int, tuple[int, int, dict[str, int]]] = {}
    alive = 0
    for event, (number, change) in enumerate(trace.events):
        kinds[trace.blocks[number].kind] += change
        alive += change
        column = int(event / width)
        if column not in found or alive > found[column][0]:
            found[column] = (alive, event, dict(kinds))
    columns = [(event, row) for _, event, row in found.values()]
    peak = trace.peak
    return {
        "events": [event for event, _ in columns],
        "kinds": {kind: [row[kind] for _, row in columns] for kind in KINDS},
        "step_ends": list(trace.step_ends),
        "device": trace.device,
        "peak": {"at": peak.at, "bytes": peak.bytes, "step": peak.step, "phase": peak.phase},
    }
