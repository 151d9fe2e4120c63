"""A run's recorded curves for charts: thinned to 200 points, names, last values, steps, seconds."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from hotlap.report.page import wording
from hotlap.report.page.curves import Curve
from hotlap.report.page.view import Document, list_of, part_of

MOST_POINTS = 200
NOT_FINITE = "not finite"
"""A document has no number for it: null stands where one was recorded."""


def curve_of(
    found: Document, name: str, *, by_time: bool = False, style: int | None = None
) -> Curve:
    """Return a recorded curve in at most `MOST_POINTS` points.

    A point of more than one value is their mean, with a band from the lowest to the highest.

    Args:
        found: a curve of a run's document.
        name: its words.
        by_time: over the seconds of the run, and not over its steps.
        style: see `Curve`.
    """
    places = list_of(found, "times_s" if by_time else "steps")
    values = values_of(found)
    each = max(1, -(-len(values) // MOST_POINTS))
    bins = [values[at : at + each] for at in range(0, len(values), each)]
    xs = [places[min(at + each, len(places)) - 1] for at in range(0, len(places), each)]
    known = [[value for value in row if wording.is_number(value)] for row in bins]
    ys = [sum(row) / len(row) if len(row) == len(bins[k]) else None for k, row in enumerate(known)]
    if each == 1:
        return Curve(name, xs, ys, style=style)
    low = [min(row, default=None) for row in known]
    high = [max(row, default=None) for row in known]
    words = f"{name}: lowest to highest of {each} values"
    return Curve(name, xs, ys, low, high, words, style)


def in_mib(found: Document, name: str) -> tuple[Document, str]:
    """Return a curve and its words; what is counted in bytes is shown in MiB."""
    if not name.endswith("_bytes"):
        return found, name
    values = [value / 2**20 if wording.is_number(value) else None for value in values_of(found)]
    return {**found, "values": values}, f"{name.removesuffix('_bytes')}, MiB"


def values_of(found: Document) -> list[Any]:
    return list_of(found, "values")


def is_constant(found: Document) -> bool:
    """True if all of a curve's values are the same: a picture of it says nothing."""
    return len({repr(value) for value in values_of(found)}) < 2


def names_of(runs: Sequence[Document], kind: str) -> list[str]:
    """Return the names of the values that runs recorded of one kind, in their order."""
    start = f"{kind}/"
    found = [name for run in runs for name in part_of(run, "curves") if name.startswith(start)]
    return [name.removeprefix(start) for name in dict.fromkeys(found)]


def last_words(run: Document, name: str) -> str:
    """Return the last value of a curve in words, `not known` if there is none."""
    values = values_of(part_of(part_of(run, "curves"), name))
    # A loss that became NaN is known.
    is_lost = bool(values) and not wording.is_number(values[-1])
    return NOT_FINITE if is_lost else wording.number(values[-1] if values else None)


def extent_of(run: Document) -> tuple[int, float]:
    """Return the steps and the seconds of a run, as far as they were recorded."""
    curves = part_of(run, "curves").values()
    steps = max((step for curve in curves for step in list_of(curve, "steps")), default=0)
    seconds = max((each for curve in curves for each in list_of(curve, "times_s")), default=0.0)
    return steps, seconds if isfinite(seconds) else 0.0
