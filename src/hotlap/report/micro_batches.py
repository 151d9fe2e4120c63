"""The line of `hotlap train --micro-batch auto` on the largest and the fastest micro-batch."""

from typing import Any

from hotlap.report.estimating import size
from hotlap.report.printable import printable


def line(found: Any) -> str:
    """Return the line on the largest and the fastest micro-batch."""
    held = f"{size(found.peak_bytes)} of {size(found.limit_bytes)}"
    whole = ", the whole batch" if found.largest == found.batch else ""
    words = f"largest micro-batch that fits: {found.largest}{whole} ({held})"
    if found.why_whole:
        return f"{words}; steps are not split: {printable(found.why_whole)}"
    if not found.rates:
        return f"{words}; no size could be timed, as turns in one process did not fit"
    if found.fastest == found.largest:
        return f"{words}; it is also the fastest"
    gain = "" if found.speedup is None else f" ({found.speedup:.2f}x of {found.largest})"
    return f"{words}; fastest: {found.fastest}{gain}"
