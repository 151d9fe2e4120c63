"""The live table of `hotlap env --watch`: what is busy now, and what each figure means."""

from collections.abc import Mapping

from rich.table import Table

from hotlap.host.monitor import meaning_of
from hotlap.host.nvml import slowed_by

_UNITS = (
    ("_bytes_per_s", 2**20, "MiB/s", ",.1f"),
    ("_bytes", 2**20, "MiB", ",.0f"),
    ("_percent", 1, "%", ",.0f"),
    ("_w", 1, "W", ",.0f"),
    ("_c", 1, "°C", ",.0f"),
    ("_mhz", 1, "MHz", ",.0f"),
)
"""End of a figure's name -> what it is divided by, its unit, its format."""


class Means:
    """The mean of each figure over all samples."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Count a sample in; return the means of its figures."""
        for name, value in figures.items():
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1
        return {name: self._sums[name] / self._counts[name] for name in figures}


def table(figures: Mapping[str, float], means: Mapping[str, float]) -> Table:
    """Return the table of one sample, with the means so far."""
    made = Table("figure", "now", "mean", "what it means", box=None, pad_edge=False)
    for name, value in figures.items():
        label, now = in_words(name, value)
        mean = "" if name.endswith("throttle_reasons") else in_words(name, means[name])[1]
        made.add_row(label, now, mean, meaning_of(name))
    return made


def in_words(name: str, value: float) -> tuple[str, str]:
    """Return a figure's label and its value with a unit.

    >>> in_words("gpu0_memory_bytes", 3 * 2**30)
    ('gpu0 memory', '3,072 MiB')
    """
    if name.endswith("throttle_reasons"):
        label = name.removesuffix("throttle_reasons") + "slowed by"
        return label.replace("_", " "), ", ".join(slowed_by(value)) or "nothing"
    for end, divisor, unit, form in _UNITS:
        if name.endswith(end):
            return name.removesuffix(end).replace("_", " "), f"{value / divisor:{form}} {unit}"
    return name.replace("_", " "), f"{value:g}"
