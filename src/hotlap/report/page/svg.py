"""Inline SVG: elements, text, ticks, and the marks by which colours are told apart."""

import math
from collections.abc import Sequence
from html import escape
from textwrap import wrap
from typing import Any, NamedTuple

from hotlap.report.printable import printable

_LETTER, _BOLD_LETTER = 7.2, 8.0
"""Pixels of a letter of the widest of the usual sans-serif fonts at 12 pixels, on average."""
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C8C8C",
    "#F0E442",
)
"""The colours of Okabe and Ito, which people with any colour vision can tell apart; grey instead of
black, which is not seen on a dark page. `c0`, `c1` and so on in the page's style sheet."""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "4 4", "1 4", "6 2 2 2")
"""The second mark of lines: no two look alike without colour."""
HATCHES = ("none", "up", "down", "dots", "across", "bars", "grid", "far")
"""The second mark of areas: names of patterns that the page defines, `none` for a plain area."""


class Frame(NamedTuple):
    """Where a chart's axes are, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


def tag(name: str, content: str = "", **attributes: float | str) -> str:
    """Return an element; attributes are escaped, `_` is `-`, and `kind` is the class.

    The content is other elements, and is not escaped.

    >>> tag("line", x1=0, x2=12.345, kind="axis")
    '<line x1="0" x2="12.3" class="axis"/>'
    """
    words = "".join(
        f' {"class" if key == "kind" else key.replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{words}>{content}</{name}>" if content else f"<{name}{words}/>"


def _attribute(value: float | str) -> str:
    if isinstance(value, str):
        return escape(printable(value))
    return f"{value:.1f}".removesuffix(".0")


def tooltip(words: str) -> str:
    """Return what is shown when a pointer rests on an element."""
    return tag("title", escape(printable(words)))


def text(words: str, x: float, y: float, kind: str = "", anchor: str = "") -> str:
    """Return a line of text that may come from anyone: it is escaped."""
    return tag("text", escape(printable(words)), x=x, y=y, kind=kind, text_anchor=anchor)


def picture(width: float, height: float, parts: Sequence[str], title: str) -> str:
    """Return a whole picture; a screen reader reads its title."""
    inside = tooltip(title) + "".join(parts)
    box = f"0 0 {math.ceil(width)} {math.ceil(height)}"
    # Without a namespace, which HTML does not need.
    return tag(
        "svg", inside, viewBox=box, width=math.ceil(width), height=math.ceil(height), role="img"
    )


def lines_of(words: str, width: float) -> list[str]:
    """Return a bold text in lines of at most that width."""
    return wrap(printable(words), max(8, int(width / _BOLD_LETTER))) or [""]


def width_of(words: str) -> float:
    return len(words) * _LETTER


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers from low to high, at most so many.

    >>> ticks(0, 9.7)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [float(low)]
    rough = span / max(1, most - 1)
    power = 10 ** math.floor(math.log10(rough))
    step = next(unit * power for unit in (1, 2, 2.5, 5, 10) if unit * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(place * step, 12) for place in range(first, last + 1)]


def tick_words(value: float) -> str:
    """Return the words at a tick: short, without an exponent where that is not needed.

    >>> tick_words(12000.0), tick_words(0.25), tick_words(2e6)
    ('12k', '0.25', '2M')
    """
    for unit, amount in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * amount or (abs(value) >= amount and amount > 1e3):
            return f"{value / amount:.4g}{unit}"
    return f"{value:.4g}"


class Scale(NamedTuple):
    """A straight map from values to pixels."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value; what lies outside is put at the edge."""
        if self.high <= self.low:
            return self.begin
        share = (value - self.low) / (self.high - self.low)
        return self.begin + min(1.0, max(0.0, share)) * (self.end - self.begin)


def horizontal_axis(scale: Scale, frame: Frame, unit: str, *, is_whole: bool = False) -> list[str]:
    """Return ticks with grid lines, and the unit below them; at whole numbers only if asked to."""
    parts = []
    room = max(2, int((frame.right - frame.left) / 60))
    places = ticks(scale.low, scale.high, min(7, room))
    for value in [place for place in places if not is_whole or float(place).is_integer()]:
        x = scale.at(value)
        parts.append(tag("line", x1=x, x2=x, y1=frame.top, y2=frame.bottom, kind="grid"))
        parts.append(text(tick_words(value), x, frame.bottom + 15, "tick", "middle"))
    middle = (frame.left + frame.right) / 2
    parts.append(text(unit, middle, frame.bottom + 31, "unit", "middle"))
    return parts


def vertical_axis(scale: Scale, frame: Frame, unit: str) -> list[str]:
    """Return ticks with grid lines, and the unit above them."""
    parts = []
    for value in ticks(scale.low, scale.high, 5):
        y = scale.at(value)
        parts.append(tag("line", x1=frame.left, x2=frame.right, y1=y, y2=y, kind="grid"))
        parts.append(text(tick_words(value), frame.left - 6, y + 4, "tick", "end"))
    parts.append(text(unit, 2, frame.top - 8, "unit"))
    return parts


def area_mark(x: float, y: float, width: float, height: float, place: int, name: str) -> list[str]:
    """Return a rectangle in the colour and the hatching of its place."""
    box: Any = {"x": x, "y": y, "width": max(0.0, width), "height": height}
    parts = [tag("rect", tooltip(name), **box, kind=f"c{place % len(COLORS)} edge")]
    hatch = HATCHES[place % len(HATCHES)]
    if hatch != "none":
        parts.append(tag("rect", **box, fill=f"url(#{hatch})", kind="hatch"))
    return parts


def legend(names: Sequence[tuple[str, str]], width: float, top: float) -> tuple[list[str], float]:
    """Return the rows of a legend and their height.

    Args:
        names: of each entry its mark, drawn in 18 pixels around (9, 0), and its words.
        width: pixels of a row.
        top: where the first row begins.
    """
    parts, x, y = [], 0.0, top + 12
    for mark, words in names:
        needed = 30 + width_of(words) + 14
        if x and x + needed > width:
            x, y = 0.0, y + 20
        parts.append(tag("g", mark, transform=f"translate({x:.1f} {y - 4:.1f})"))
        parts.append(text(words, x + 26, y))
        x += needed
    return parts, y - top + 10
