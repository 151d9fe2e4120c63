"""Stacked area chart (SVG): parts of a whole over time, with borders and a marked peak."""

from collections.abc import Mapping, Sequence

from hotlap.report.page.svg import (
    COLORS,
    HATCHES,
    Frame,
    Scale,
    area_mark,
    horizontal_axis,
    legend,
    picture,
    tag,
    text,
    tooltip,
    vertical_axis,
    width_of,
)

_HEIGHT = 220


def draw_areas(
    xs: Sequence[float],
    parts: Mapping[str, Sequence[float]],
    width: float,
    x_unit: str,
    y_unit: str,
    title: str,
    *,
    borders: Sequence[float] = (),
    labels: Sequence[tuple[float, str]] | None = None,
    peak: tuple[float, float, str] | None = None,
) -> str:
    """Return a picture of areas that lie on each other.

    Args:
        xs: where each column is.
        parts: name of an area -> its height in each column, from the bottom to the top.
        width: pixels of the picture.
        x_unit: words below the horizontal axis.
        y_unit: words above the vertical axis.
        title: what a screen reader reads.
        borders: places that get a line, such as the ends of epochs.
        labels: words below the horizontal axis, each at its place; numbers if None.
        peak: a point with its words, marked.
    """
    marks = [("".join(area_mark(0, -6, 20, 12, k, name)), name) for k, name in enumerate(parts)]
    drawn, below = legend(marks, width, 0)
    frame = Frame(58, below + 26, width - 14, below + 26 + _HEIGHT)
    highest = max((sum(column) for column in zip(*parts.values(), strict=True)), default=0.0) or 1.0
    horizontal = Scale(min(xs), max(xs), frame.left, frame.right)
    vertical = Scale(0, highest * 1.05, frame.bottom, frame.top)
    drawn += _axis(horizontal, frame, x_unit, labels)
    drawn += vertical_axis(vertical, frame, y_unit)
    floor = [0.0] * len(xs)
    for place, (name, heights) in enumerate(parts.items()):
        ceiling = [low + more for low, more in zip(floor, heights, strict=True)]
        outline = [*zip(xs, ceiling, strict=True), *reversed([*zip(xs, floor, strict=True)])]
        points = " ".join(f"{horizontal.at(x):.1f},{vertical.at(y):.1f}" for x, y in outline)
        # No edge: what is high for a moment only would be hidden by it.
        kind = f"c{place % len(COLORS)}"
        drawn.append(tag("polygon", tooltip(name), points=points, kind=kind))
        hatch = HATCHES[place % len(HATCHES)]
        if hatch != "none":
            drawn.append(tag("polygon", points=points, fill=f"url(#{hatch})", kind="hatch"))
        floor = ceiling
    for border in borders:
        x = horizontal.at(border)
        drawn.append(tag("line", x1=x, x2=x, y1=frame.top, y2=frame.bottom, kind="zero"))
    if peak is not None:
        drawn += _peak(horizontal.at(peak[0]), vertical.at(peak[1]), peak[2], frame)
    return picture(width, frame.bottom + 40, drawn, title)


def _axis(
    scale: Scale, frame: Frame, unit: str, labels: Sequence[tuple[float, str]] | None
) -> list[str]:
    if labels is None:
        return horizontal_axis(scale, frame, unit)
    middle = (frame.left + frame.right) / 2
    drawn, free = [text(unit, middle, frame.bottom + 31, "unit", "middle")], frame.left
    for place, words in labels:
        x = scale.at(place)
        # Labels that would lie on each other are not drawn.
        if x - width_of(words) / 2 >= free:
            drawn.append(text(words, x, frame.bottom + 15, "tick", "middle"))
            free = x + width_of(words) / 2 + 4
    return drawn


def _peak(x: float, y: float, words: str, frame: Frame) -> list[str]:
    is_right = x > (frame.left + frame.right) / 2
    point = tag("circle", cx=x, cy=y, r=4.5, kind="hollow")
    return [
        point,
        text(words, x - 8 if is_right else x + 8, y - 8, "inside", "end" if is_right else ""),
    ]
