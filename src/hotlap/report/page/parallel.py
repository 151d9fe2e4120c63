"""Parallel coordinates: each trial is a line through its parameters and its value."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.report.page.svg import legend, picture, tag, text, tick_words, ticks, tooltip, width_of
from hotlap.report.page.wording import is_number

_GAP = 70
"""Pixels from one axis to the next: they lie below each other, so that any number fits a phone."""
_MOST_LETTERS = 16


@dataclass(frozen=True)
class Axis:
    """What trials are told apart by."""

    name: str
    values: Sequence[Any]
    """Of each trial; None where it has none."""
    is_log: bool = False
    is_choice: bool = False
    """True for names, and for numbers of which there are a few."""

    @property
    def is_numeric(self) -> bool:
        """True if the axis is one of numbers."""
        return not self.is_choice and all(
            value is None or is_number(value) for value in self.values
        )

    def shares(self) -> list[float | None]:
        """Return where on the axis each trial is, 0 to 1."""
        if not self.is_numeric:
            names = self.categories()
            last = max(1, len(names) - 1)
            return [None if v is None else names.index(str(v)) / last for v in self.values]
        numbers = [None if v is None else self._scaled(v) for v in self.values]
        low, high = self._ends(numbers)
        return [None if n is None else (n - low) / (high - low) for n in numbers]

    def categories(self) -> list[str]:
        """Return the values that are names, in the order of the axis."""
        distinct = {str(value): value for value in self.values if value is not None}
        if all(map(is_number, distinct.values())):
            return sorted(distinct, key=lambda name: float(distinct[name]))
        return sorted(distinct)

    def labels(self) -> list[tuple[float, str]]:
        """Return the words at the axis, each with its place from 0 to 1."""
        if not self.is_numeric:
            names = self.categories()
            last = max(1, len(names) - 1)
            return [(place / last, name[:_MOST_LETTERS]) for place, name in enumerate(names)]
        low, high = self._ends([self._scaled(v) for v in self.values if v is not None])
        if not self._is_log:
            return [((v - low) / (high - low), tick_words(v)) for v in ticks(low, high, 5)]
        powers = range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)
        places = [float(power) for power in powers] if len(powers) > 1 else [low, high]
        return [((p - low) / (high - low), tick_words(10**p)) for p in places]

    @property
    def _is_log(self) -> bool:
        return self.is_log and all(value is None or value > 0 for value in self.values)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._is_log else float(value)

    def _ends(self, numbers: Sequence[float | None]) -> tuple[float, float]:
        known = [number for number in numbers if number is not None]
        low, high = min(known, default=0.0), max(known, default=1.0)
        return (low, high) if low < high else (low - 0.5, high + 0.5)


def draw_parallel(
    axes: Sequence[Axis],
    good: Sequence[bool],
    best: int | None,
    width: float,
    title: str,
    names: Mapping[str, str],
) -> str:
    """Return a picture with one axis below the other, and a line for each trial.

    Args:
        axes: the parameters, and the value.
        good: of each trial, whether it is one of the better ones.
        best: place of the best trial, None if there is none.
        width: pixels of the picture.
        title: what a screen reader reads.
        names: words of the legend for `best`, `good` and `other`.
    """
    marks = [(_sample(kind), names[kind]) for kind in ("best", "good", "other")]
    drawn, below = legend(marks, width, 0)
    left, right, top = 10.0, width - 14, below + 26
    columns = [axis.shares() for axis in axes]
    # The better ones lie above the others, the best one above all.
    order = sorted(range(len(good)), key=lambda trial: (trial == best, good[trial]))
    for trial in order:
        kind = "best" if trial == best else "good" if good[trial] else "other"
        points = [
            (left + share * (right - left), top + place * _GAP)
            for place, column in enumerate(columns)
            if (share := column[trial]) is not None
        ]
        drawn += _line(points, kind, ", ".join(f"{a.name}={a.values[trial]}" for a in axes))
    for place, axis in enumerate(axes):
        drawn += _axis(axis, left, right, top + place * _GAP)
    return picture(width, top + (len(axes) - 1) * _GAP + 34, drawn, title)


def _axis(axis: Axis, left: float, right: float, y: float) -> list[str]:
    parts = [
        tag("line", x1=left, x2=right, y1=y, y2=y, kind="axis"),
        text(axis.name, left - 8, y - 8, "label"),
    ]
    free = 0.0
    for share, words in axis.labels():
        x = left + share * (right - left)
        half = width_of(words) / 2
        middle = min(max(x, half), right + 12 - half)
        if middle - half < free:
            continue
        free = middle + half + 4
        parts.append(tag("line", x1=x, x2=x, y1=y - 4, y2=y + 4, kind="axis"))
        parts.append(text(words, middle, y + 17, "tick", "middle"))
    return parts


_LOOKS = {"best": ("l1 curve", ""), "good": ("l0 faint", ""), "other": ("l6 faint", "3 4")}


def _line(points: Sequence[tuple[float, float]], kind: str, words: str) -> list[str]:
    look, dash = _LOOKS[kind]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [tag("polyline", tooltip(words), points=path, kind=look, stroke_dasharray=dash)]
    if kind == "best":
        parts += [_square(x, y) for x, y in points]
    return parts


def _square(x: float, y: float) -> str:
    return tag("rect", x=x - 3.6, y=y - 3.6, width=7.2, height=7.2, kind="c1 edge")


def _sample(kind: str) -> str:
    look, dash = _LOOKS[kind]
    line = tag("line", x1=0, x2=22, y1=0, y2=0, kind=look, stroke_dasharray=dash)
    return line + (_square(11, 0) if kind == "best" else "")
