"""Line chart (SVG): curves with markers, gaps, and bands from low to high; `Curve`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.report.page.svg import (
    COLORS,
    DASHES,
    Frame,
    Scale,
    horizontal_axis,
    legend,
    picture,
    tag,
    vertical_axis,
)

_HEIGHT = 230
_MARKERS = 7
"""Markers on a curve: enough to tell it from others."""
_FEW = 24
"""Points of a curve up to which each has its marker."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart; what is not finite is a gap."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]
    low: Sequence[float | None] = ()
    """The lower end of its band at each point; empty for none."""
    high: Sequence[float | None] = ()
    band: str = ""
    """What the band is, in words."""
    style: int | None = None
    """Which colour and mark it has; its place if None."""
    has_line: bool = True
    has_marks: bool = True


def draw_curves(curves: Sequence[Curve], width: float, x_unit: str, y_unit: str, title: str) -> str:
    """Return a picture of curves over each other.

    Args:
        curves: at least one, with a finite point.
        width: pixels of the picture.
        x_unit: words below the horizontal axis.
        y_unit: words above the vertical axis.
        title: what a screen reader reads.
    """
    marks: list[tuple[str, str]] = []
    for place, curve in enumerate(curves):
        style = place if curve.style is None else curve.style
        marks.append((_sample(curve, style), curve.name))
        if curve.band:
            box = tag("rect", x=0, y=-7, width=20, height=14, kind=f"c{style % len(COLORS)} band")
            marks.append((box, curve.band))
    drawn, below = legend(marks, width, 0)
    frame = Frame(58, below + 26, width - 14, below + 26 + _HEIGHT)
    horizontal, vertical = _scales(curves, frame)
    is_whole = all(float(x).is_integer() for curve in curves for x in curve.xs)
    drawn += horizontal_axis(horizontal, frame, x_unit, is_whole=is_whole)
    drawn += vertical_axis(vertical, frame, y_unit)
    for place, curve in enumerate(curves):
        style = place if curve.style is None else curve.style
        drawn += _band(curve, style, horizontal, vertical)
    for place, curve in enumerate(curves):
        style = place if curve.style is None else curve.style
        drawn += _line(curve, style, horizontal, vertical)
    return picture(width, frame.bottom + 40, drawn, title)


def is_drawable(curve: Curve) -> bool:
    """True if a curve has a point that can be drawn."""
    return any(_is_point(x, y) for x, y in zip(curve.xs, curve.ys, strict=False))


def _is_point(x: float, y: float | None) -> bool:
    return y is not None and math.isfinite(x) and math.isfinite(y)


def _scales(curves: Sequence[Curve], frame: Frame) -> tuple[Scale, Scale]:
    xs = [x for curve in curves for x in curve.xs if math.isfinite(x)]
    ys = [
        y
        for curve in curves
        for y in (*curve.ys, *curve.low, *curve.high)
        if y is not None and math.isfinite(y)
    ]
    low, high = (min(ys), max(ys)) if ys else (0.0, 1.0)
    spare = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    # A quantity that cannot be negative does not get an axis that is.
    bottom = max(0.0, low - spare) if low >= 0 else low - spare
    left, right = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if left == right:
        left, right = left - 0.5, right + 0.5
    return (
        Scale(left, right, frame.left, frame.right),
        Scale(bottom, high + spare, frame.bottom, frame.top),
    )


def _band(curve: Curve, style: int, horizontal: Scale, vertical: Scale) -> list[str]:
    rows = [
        (x, low, high)
        for x, low, high in zip(curve.xs, curve.low, curve.high, strict=False)
        if low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    ]
    if not rows:
        return []
    up = [f"{horizontal.at(x):.1f},{vertical.at(high):.1f}" for x, _, high in rows]
    down = [f"{horizontal.at(x):.1f},{vertical.at(low):.1f}" for x, low, _ in reversed(rows)]
    return [tag("polygon", points=" ".join([*up, *down]), kind=f"c{style % len(COLORS)} band")]


def _line(curve: Curve, style: int, horizontal: Scale, vertical: Scale) -> list[str]:
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(curve.xs, curve.ys, strict=False):
        if y is not None and _is_point(x, y):
            pieces[-1].append((horizontal.at(x), vertical.at(y)))
        elif pieces[-1]:
            pieces.append([])
    kind, dash = f"l{style % len(COLORS)} curve", DASHES[style % len(DASHES)]
    drawn = [
        tag("polyline", points=_points(piece), kind=kind, stroke_dasharray=dash)
        for piece in pieces
        if len(piece) > 1 and curve.has_line
    ]
    if not curve.has_marks:
        return drawn
    points = [point for piece in pieces for point in piece]
    every = 1 if len(points) <= _FEW or not curve.has_line else max(1, len(points) // _MARKERS)
    # Curves over each other have their markers at other places.
    first = (style * every // 3) % every
    return [*drawn, *(_marker(style, x, y) for x, y in points[first::every])]


def _points(piece: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in piece)


def _sample(curve: Curve, style: int) -> str:
    kind, dash = f"l{style % len(COLORS)} curve", DASHES[style % len(DASHES)]
    line = tag("line", x1=0, x2=22, y1=0, y2=0, kind=kind, stroke_dasharray=dash)
    mark = _marker(style, 11, 0)
    return (line if curve.has_line else "") + (mark if curve.has_marks else "")


def _marker(style: int, x: float, y: float) -> str:
    kind = f"c{style % len(COLORS)} edge"
    shape = style % 4
    if shape == 0:
        return tag("circle", cx=x, cy=y, r=3.6, kind=kind)
    if shape == 1:
        return tag("rect", x=x - 3.4, y=y - 3.4, width=6.8, height=6.8, kind=kind)
    corners = ((0, -4.6), (4.4, 3.4), (-4.4, 3.4)) if shape == 2 else _DIAMOND
    return tag("polygon", points=_points([(x + a, y + b) for a, b in corners]), kind=kind)


_DIAMOND = ((0, -4.8), (4.8, 0), (0, 4.8), (-4.8, 0))
