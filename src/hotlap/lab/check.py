"""`Check`: what one check of a proof has found: its state, in words, and the figures for it."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One check: `passed`, `failed`, `partial` or `not_made`, and what it rests on."""

    name: str
    state: str
    evidence: str
    limit: float | None = None
    """The smallest change that it would have seen, where that depends on the script."""


def not_compared(kinds: Collection[str]) -> str:
    """Return in words that what objects of some kinds hold could not be read, so it may differ."""
    more = f" and {len(kinds) - 3} more kinds" if len(kinds) > 3 else ""
    return f"but not what these objects hold: {', '.join(sorted(kinds)[:3])}{more}"
