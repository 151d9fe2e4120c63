"""Stacked bar chart (SVG): each bar is made of named parts, such as the phases of a step."""

from collections.abc import Mapping, Sequence

from hotlap.report.page.svg import (
    Frame,
    Scale,
    area_mark,
    horizontal_axis,
    legend,
    picture,
    text,
    width_of,
)

_BAR, _GAP = 30, 34


def draw_stacks(
    rows: Sequence[tuple[str, Mapping[str, float]]], width: float, unit: str, title: str
) -> str:
    """Return a picture of bars that are made of parts.

    Args:
        rows: of each bar its words, and name of a part -> its length. Parts keep their order and
            their colour in all bars.
        width: pixels of the picture.
        unit: of the lengths, for the axis.
        title: what a screen reader reads.
    """
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))
    longest = max((sum(parts.values()) for _, parts in rows), default=0.0) or 1.0
    marks = [("".join(area_mark(0, -6, 20, 12, k, name)), name) for k, name in enumerate(names)]
    drawn, below = legend(marks, width, 0) if len(names) > 1 else ([], 0.0)
    frame = Frame(5, below + 6, width - 14, below + 6 + len(rows) * (_BAR + _GAP))
    scale = Scale(0, longest, frame.left, frame.right)
    drawn += horizontal_axis(scale, frame, unit)
    for place, (words, parts) in enumerate(rows):
        top = frame.top + place * (_BAR + _GAP)
        drawn.append(text(words, frame.left, top + 16, "label"))
        drawn += _stack(parts, names, scale, top + 23)
    return picture(width, frame.bottom + 40, drawn, title)


def _stack(parts: Mapping[str, float], names: Sequence[str], scale: Scale, top: float) -> list[str]:
    drawn, at = [], 0.0
    for place, name in enumerate(names):
        length = max(0.0, parts.get(name, 0.0))
        left, right = scale.at(at), scale.at(at + length)
        if length:
            drawn += area_mark(left, top, right - left, _BAR, place, f"{name}: {length:.3g}")
        words = f"{name} {length:.2f}" if len(names) > 1 else ""
        if words and width_of(words) + 16 < right - left:
            drawn.append(text(words, (left + right) / 2, top + 20, "inside", "middle"))
        at += length
    return drawn
