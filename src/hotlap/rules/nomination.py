"""`Nomination`: what may be slow, where, and which remedies could be tried."""

from collections.abc import Mapping
from dataclasses import dataclass

from hotlap.plan import Plan


@dataclass(frozen=True)
class Nomination:
    """A suspicion, with the plans whose trial decides."""

    where: str
    """`file:line` in the user's code."""
    evidence: str
    remedies: tuple[Plan, ...]
    """Tried in this order; the one that gains most is proposed."""
    advice: Mapping[str, str]
    """Technique, or plan as text where options differ -> what a user who edits the script could do
    in its place."""
    at_most_ms: float
    """Per step; the time that a perfect remedy could take away, as the trace shows it."""
    bound: Plan | None = None
    """A plan that only measures what a perfect remedy would give."""
    bound_words: str = ""
    """What that plan does, as in `with a free optimizer`."""
    bound_share: float = 0.0
    """Share of the step that the bound must take away to be a finding, where no remedy works."""
    by_hand: str = ""
    """What a user could do where no technique helps."""
    partial: frozenset[str] = frozenset()
    """Remedies that take away a part of the time at most: where they gain nothing, it may still be
    lost."""
    sampled_ms: tuple[float, float, float] | None = None
    """Per step, and the ends of its interval, where the time was sampled that the lines to edit
    take: that is evidence by itself, of medium confidence at most."""
    rule: str = ""
    """Who nominates; filled in by the rule's record."""
    kind: str = ""
    """`speed`, `memory` or `mistake`; filled in likewise."""


def mistake(where: str, evidence: str, by_hand: str) -> Nomination:
    """Return a nomination that costs no time: what is learned is not what is meant.

    Args:
        where: `file:line` of the line to edit.
        evidence: what was seen, in figures.
        by_hand: the edit.
    """
    return Nomination(
        where=where, evidence=evidence, remedies=(), advice={}, at_most_ms=0.0, by_hand=by_hand
    )
