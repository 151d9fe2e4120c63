"""A sequential test of paired turns: is one way of training faster than another?

Each pair is a bet on the sign of a difference: one may look, and stop, after every pair.
"""

from collections.abc import Sequence
from math import comb, log
from typing import Literal

WORTH = 0.01
"""The least gain that is decided on."""
EVIDENCE = 100.0
"""How many times likelier the turns must be under a gain than under none, times the number of
plans: the chance of any false decision is at most its inverse, however often one looks."""
INTERVAL = 200.0
"""The evidence at which a value lies outside an interval, and at which two runs of one plan are
said to differ."""


def evidence(count: int, positive: int) -> float:
    """Return how many times likelier that many positive differences are under a gain.

    Under no gain each of `count` differences is positive with a chance of one half at most; under a
    gain with one that is unknown, above one half (uniform). The result is the ratio of the two, a
    test martingale: it exceeds X with a chance of at most 1 / X, whenever one looks.
    """
    if count == 0:
        return 1.0
    total = sum(comb(count + 1, j) for j in range(positive + 1))
    return total / ((count + 1) * comb(count, positive))


def differ(differences: Sequence[float]) -> bool:
    """Return whether there is evidence that two combinations differ, either way."""
    above = sum(each > 0 for each in differences)
    count = len(differences)
    return max(evidence(count, k) for k in (above, count - above)) >= INTERVAL


def decide(differences: Sequence[float], wanted: float) -> Literal["faster", "not_faster"] | None:
    """Return whether a combination is faster than the base or not, None if that is open.

    Args:
        differences: log of base over the combination, one a round.
        wanted: the evidence that decides.
    """
    above = count_above(differences)
    if evidence(len(differences), above) >= wanted:
        return "faster"
    if evidence(len(differences), len(differences) - above) >= wanted:
        return "not_faster"
    return None


def count_above(differences: Sequence[float]) -> int:
    """Return in how many rounds it was faster by what is worth deciding on."""
    return sum(each > log(1 + WORTH) for each in differences)
