"""Formats numbers, times, sizes, ratios and plans for a page; ends sentences."""

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from hotlap.plan.record import in_words

NOTHING = "not known"
_SMALLEST = 1e-3
_SMALLEST_MS = 0.1
_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def number(value: Any) -> str:
    """Return a number with four digits, `not known` for None and not-a-number.

    >>> number(12345.6), number(0.12345), number(0.00001), number(None)
    ('12,346', '0.1235', '1e-05', 'not known')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float) or not math.isfinite(value):
        return NOTHING
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= _SMALLEST else f"{value:.2g}"


def bound(value: Any) -> str:
    """Return a gain, or an end of its interval; None is one without a bound, as of a failure."""
    return "no bound" if value is None else number(value)


def ms(value: Any) -> str:
    """Return milliseconds with their unit."""
    if not is_number(value):
        return NOTHING
    return f"{value:,.0f} ms" if abs(value) >= 1000 else f"{value:.2f} ms"


def least_ms(value: Any) -> str:
    """Return milliseconds; microseconds where two decimals would leave nothing of them.

    >>> least_ms(12.5), least_ms(0.0123), least_ms(0.000004)
    ('12.50 ms', '12.3 µs', '0.004 µs')
    """
    if is_number(value) and 0 < abs(value) < _SMALLEST_MS:
        return f"{value * 1000:.3g} µs"
    return ms(value)


def seconds(value: Any) -> str:
    """Return seconds, from two minutes on as hours, minutes and seconds."""
    if not is_number(value):
        return NOTHING
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min {rest:02} s" if hours else f"{minutes} min {rest:02} s"


def percent(share: Any) -> str:
    return f"{share:.1%}" if is_number(share) else NOTHING


def size(count: Any) -> str:
    """Return bytes in the largest unit that is no larger than they are."""
    if not is_number(count):
        return NOTHING
    for unit, amount in _SIZES:
        if abs(count) >= amount:
            return f"{count / amount:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def times(ratio: Mapping[str, Any] | None) -> str:
    """Return a ratio with its interval, as in `1.06x (1.04 to 1.10)`."""
    if not ratio or not is_number(ratio.get("median")):
        return NOTHING
    words = f"{ratio['median']:.2f}x"
    low, high = ratio.get("low"), ratio.get("high")
    return f"{words} ({low:.2f} to {high:.2f})" if is_number(low) and is_number(high) else words


def plan(techniques: Any) -> str:
    """Return a plan of a document, as in `resident, threads(count=2)`."""
    if not isinstance(techniques, Mapping) or not techniques:
        return "(plain)"
    return ", ".join(
        in_words(str(name), options if isinstance(options, Mapping) else {})
        for name, options in techniques.items()
    )


def is_number(value: Any) -> TypeGuard[float]:
    """True for a finite number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def ended(text: Any) -> str:
    """Return a text with a full stop; it may begin with a name, and keeps its first letter.

    >>> ended("threads(count=2) alone")
    'threads(count=2) alone.'
    """
    words = str(text or "").strip()
    return words + ("" if not words or words[-1] in ".!?:" else ".")


def sentence(text: Any) -> str:
    """Return a text with its first letter as a capital, and a full stop.

    >>> sentence("the loader waits")
    'The loader waits.'
    """
    words = ended(text)
    return words[:1].upper() + words[1:]
