"""Interval chart (SVG): measured values with intervals, beside the noise of identical runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.report.page.svg import (
    Frame,
    Scale,
    horizontal_axis,
    legend,
    lines_of,
    picture,
    tag,
    text,
)

_LINE, _MARK, _GAP = 15, 18, 7


@dataclass(frozen=True)
class Interval:
    """One measured value."""

    name: str
    median: float
    low: float
    high: float
    words: str
    """The value in words."""
    is_above: bool
    """True if all of it lies above what identical runs differ by."""


def draw_intervals(
    rows: Sequence[Interval],
    width: float,
    unit: str,
    title: str,
    *,
    zero: float = 0.0,
    noise: float | None = None,
) -> str:
    """Return a picture of values with their intervals, one below the other.

    Args:
        rows: the values.
        width: pixels of the picture.
        unit: for the axis.
        title: what a screen reader reads.
        zero: the value that means no difference.
        noise: how far identical runs are from it; None if that is not known.
    """
    apart = noise or 0.0
    low = min([zero - apart, *(row.low for row in rows)])
    high = max([zero + apart, *(row.high for row in rows)])
    spare = 0.06 * ((high - low) or 1.0)
    marks = [(_point(9, 0, is_above=True), "above the noise")]
    marks.append((_point(9, 0, is_above=False), "within it, or below"))
    if noise is not None:
        band = tag("rect", x=0, y=-7, width=20, height=14, kind="noise")
        marks.append((band, "identical runs differ by as much"))
    drawn, below = legend(marks, width, 0)
    names = [lines_of(f"{row.name}: {row.words}", width - 8) for row in rows]
    height = sum(len(lines) * _LINE + _MARK + _GAP for lines in names)
    frame = Frame(8, below + 4, width - 14, below + 4 + height)
    scale = Scale(low - spare, high + spare, frame.left, frame.right)
    if noise is not None:
        left, right = scale.at(zero - apart), scale.at(zero + apart)
        box = {"x": left, "width": max(1.0, right - left), "y": frame.top, "height": height}
        drawn.append(tag("rect", **box, kind="noise"))
    drawn += horizontal_axis(scale, frame, unit)
    at = scale.at(zero)
    drawn.append(tag("line", x1=at, x2=at, y1=frame.top, y2=frame.bottom, kind="zero"))
    top = frame.top
    for row, lines in zip(rows, names, strict=True):
        for place, line in enumerate(lines):
            drawn.append(text(line, 4, top + 12 + place * _LINE, "label"))
        top += len(lines) * _LINE
        drawn += _mark(row, scale, top + _MARK / 2)
        top += _MARK + _GAP
    return picture(width, frame.bottom + 40, drawn, title)


def _mark(row: Interval, scale: Scale, y: float) -> list[str]:
    left, right = scale.at(row.low), scale.at(row.high)
    ends = [tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4, kind="whisker") for x in (left, right)]
    line = tag("line", x1=left, x2=right, y1=y, y2=y, kind="whisker")
    return [line, *ends, _point(scale.at(row.median), y, is_above=row.is_above)]


def _point(x: float, y: float, *, is_above: bool) -> str:
    # Shape and filling say the same as the colour.
    if is_above:
        return tag("circle", cx=x, cy=y, r=5.5, kind="c0 edge")
    return tag("rect", x=x - 4.5, y=y - 4.5, width=9, height=9, kind="hollow")
