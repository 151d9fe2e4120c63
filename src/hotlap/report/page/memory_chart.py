"""Draws a timeline of memory by kind as stacked areas: units, labels of steps, the peak."""

from hotlap.report.page import wording
from hotlap.report.page.areas import draw_areas
from hotlap.report.page.view import Document, list_of, part_of

_ORDER = (
    "other",
    "parameters",
    "optimizer",
    "gradients",
    "batches",
    "retained",
    "activations",
    "temporaries",
)
"""From the bottom of the picture to its top."""


def draw_memory(timeline: Document, width: float) -> str:
    """Return bytes over the allocations and frees, in order, by kind.

    Args:
        timeline: see `hotlap.trace.memory_timeline`; with one column at least.
        width: pixels of the picture.
    """
    events, kinds = list_of(timeline, "events"), part_of(timeline, "kinds")
    peak, ends = part_of(timeline, "peak"), list_of(timeline, "step_ends")
    top = peak.get("bytes") or 1
    unit, name = (2**30, "GiB") if top >= 2**30 else (2**20, "MiB")
    if top < 2**20:
        unit, name = 1024, "KiB"
    parts = {
        kind: [amount / unit for amount in kinds[kind]]
        for kind in sorted(kinds, key=_place)
        if any(kinds[kind])
    }
    begins = [events[0], *ends]
    labels = [((a + b) / 2, str(k)) for k, (a, b) in enumerate(zip(begins, ends, strict=False), 1)]
    words = f"peak {wording.size(top)}, step {peak.get('step')}, {peak.get('phase')}"
    return draw_areas(
        events,
        parts,
        width,
        "step (allocations and frees in order)",
        f"memory of tensors ({name})",
        f"Memory of tensors by kind, {timeline.get('device')}",
        borders=ends,
        labels=labels,
        peak=(peak.get("at") or 0, top / unit, words),
    )


def _place(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
