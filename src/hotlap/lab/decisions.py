"""`Decision`: what turns in one process say of a combination of techniques, by a sequential test.

Each round is a bet on the sign of a difference: one may look, and stop, after every round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, exp, log
from statistics import median
from typing import Literal

from hotlap.lab.statistics import Ratio

WORTH = 0.01
"""The least gain that is decided on."""
EVIDENCE = 100.0
"""How many times likelier the turns must be under a gain than under none, times the number of
plans: the chance of any false decision is at most its inverse, however often one looks."""
_INTERVAL = 200.0
State = Literal["faster", "not_faster", "undecided", "failed"]


Combination = tuple[int, ...]
"""Numbers of the techniques that are on together; none for the plain script."""
PLAIN: Combination = ()


@dataclass(frozen=True)
class Decision:
    """What a race says of one combination."""

    on: Combination
    state: State
    ratio: Ratio | None = None
    """Base over this one by the medians of turns, None if it took no turn."""
    why: str = ""
    """Why it failed, or is not decided."""
    odds: float = 0.0
    """How many times likelier its turns are under a gain than under none."""


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
    return max(evidence(count, k) for k in (above, count - above)) >= _INTERVAL


def decided(differences: Sequence[float], wanted: float) -> State | None:
    """Return whether a combination is faster than the base or not, None if that is open.

    Args:
        differences: log of base over the combination, one a round.
        wanted: the evidence that decides.
    """
    above = _above(differences)
    if evidence(len(differences), above) >= wanted:
        return "faster"
    if evidence(len(differences), len(differences) - above) >= wanted:
        return "not_faster"
    return None


def decision_of(
    on: Combination,
    state: State,
    logs: Sequence[float],
    means: Sequence[float],
    *,
    is_void: bool,
    why: str = "",
) -> Decision:
    """Return a decision with what speaks against it."""
    ratio, above = ratio_of(logs), _above(logs)
    if is_void:
        return Decision(on, "undecided", ratio, "the same plan differed from itself")
    if state == "faster":
        by_means = ratio_of(means).median
        if by_means < 1 + WORTH:
            # What lengthens few steps hides from medians: a collector, a reader that stalls.
            return Decision(on, "undecided", ratio, f"{by_means:.2f}x by the means of turns")
    return Decision(on, state, ratio, why, evidence(len(logs), above))


def _above(differences: Sequence[float]) -> int:
    """Return in how many rounds it was faster by what is worth deciding on."""
    return sum(each > log(1 + WORTH) for each in differences)


def ratio_of(differences: Sequence[float]) -> Ratio:
    """Return the Hodges-Lehmann estimate of exp(difference), and an interval around it.

    From ten rounds on the interval may be looked at after every round: it is wrong with a chance of
    at most 1 in 100. With fewer it is the range of what was seen.

    Args:
        differences: log of base over the other, one a round.
    """
    means = [(a + b) / 2 for a, b in combinations_with_replacement(differences, 2)]
    ordered, count = sorted(differences), len(differences)
    # The k-th smallest and the k-th largest, for the least k that there is evidence against.
    inside = next(
        (k for k in range(count, count // 2, -1) if evidence(count, k) < _INTERVAL), count // 2
    )
    at = max(0, count - inside - 1)
    low, high = ordered[at], ordered[count - 1 - at]
    return Ratio(exp(median(means)), exp(low), exp(high), count)
