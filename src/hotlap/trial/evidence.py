"""A sequential test of turns: is one way of training faster than another?

Each round is a bet on which of its turns is the fastest, of two, or of three where the base took a
second one: one may look, and stop, after every round.
"""

from collections.abc import Sequence
from math import comb, inf, log
from typing import Literal

WORTH = 0.01
"""The least gain that is decided on."""
EVIDENCE = 100.0
"""How many times likelier the turns must be under a gain than under none, times the number of
plans: the chance of any false decision in a race is at most its inverse, however often one looks.
"""
_OF_PAIRS = 30.0
"""The same of the base's first turns alone, without their placebos: it holds for turns that vary
more than the base's, too."""
INTERVAL = 200.0
"""The evidence at which a value lies outside an interval, and at which two runs of one plan are
said to differ."""


def evidence(count: int, positive: int, of: int = 2) -> float:
    """Return how many times likelier that many positive rounds are under a gain.

    Under no gain each of `count` rounds is positive with a chance of one in `of` at most; under a
    gain with one that is unknown, above that (uniform). The result is the ratio of the two, a test
    martingale: it exceeds X with a chance of at most 1 / X, whenever one looks.

    Args:
        count: rounds.
        positive: those in which it was the fastest.
        of: of how many turns it was the fastest.
    """
    if count == 0:
        return 1.0
    # The odds of one round, in whole numbers: 1 to `others`.
    others = of - 1
    total = sum(comb(count + 1, j) * others ** (count + 1 - j) for j in range(positive + 1))
    try:
        return total / (others ** (count - positive + 1) * (count + 1) * comb(count, positive))
    except OverflowError:
        return inf


def odds(differences: Sequence[float], placebos: Sequence[float | None]) -> tuple[float, float]:
    """Return the evidence that a combination is faster than the base, and that it is not.

    Where the base took a second turn in a round, its placebo, what is no faster is the fastest of
    the three with a chance of one in three only: fewer rounds decide. That takes for granted that
    turns of both vary alike, see `decide`.

    Args:
        differences: log of base over the combination, one a round.
        placebos: log of base over its placebo in each of these rounds, None where there was none.
    """
    least = log(1 + WORTH)
    pairs = [ours for ours, placebo in zip(differences, placebos, strict=True) if placebo is None]
    threes = [
        (ours, ours - placebo)
        for ours, placebo in zip(differences, placebos, strict=True)
        if placebo is not None
    ]
    above = count_above(pairs)
    fastest = sum(min(both) > least for both in threes)
    slowest = sum(max(both) <= least for both in threes)
    gain = evidence(len(pairs), above) * evidence(len(threes), fastest, of=3)
    none = evidence(len(pairs), len(pairs) - above) * evidence(len(threes), slowest, of=3)
    return gain, none


def differ(differences: Sequence[float]) -> bool:
    """Return whether there is evidence that two combinations differ, either way."""
    above = sum(each > 0 for each in differences)
    count = len(differences)
    return max(evidence(count, k) for k in (above, count - above)) >= INTERVAL


def decide(
    differences: Sequence[float], wanted: float, placebos: Sequence[float | None] | None = None
) -> Literal["faster", "not_faster"] | None:
    """Return whether a combination is faster than the base or not, None if that is open.

    Where its turns vary more than the base's, it is the fastest of three more often than that; so
    there must be some evidence without placebos as well.

    Args:
        differences: log of base over the combination, one a round.
        wanted: the evidence that decides.
        placebos: see `odds`; None if there was none in any round.
    """
    without: list[float | None] = [None] * len(differences)
    gain, none = odds(differences, without if placebos is None else placebos)
    pairs_gain, pairs_none = odds(differences, without)
    if gain >= wanted and pairs_gain >= min(wanted, _OF_PAIRS):
        return "faster"
    return "not_faster" if none >= wanted and pairs_none >= min(wanted, _OF_PAIRS) else None


def rounds_to_decide(wanted: float) -> int:
    """Return the fewest rounds that give the evidence that decides."""
    rounds = 1
    while decide([log(2.0)] * rounds, wanted, [0.0] * rounds) is None:
        rounds += 1
    return rounds


def count_above(differences: Sequence[float]) -> int:
    """Return in how many rounds it was faster by what is worth deciding on."""
    return sum(each > log(1 + WORTH) for each in differences)
