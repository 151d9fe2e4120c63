"""`Decision`: is a combination faster, by turns in one process; Hodges-Lehmann ratio of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import exp
from statistics import median
from typing import Literal

from hotlap.lab.statistics import Ratio
from hotlap.trial.evidence import INTERVAL, WORTH, evidence, odds

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
    by_means: float | None = None
    """How many times faster it is by the means of turns, which few long steps lengthen, too."""


def decision_of(
    on: Combination,
    state: State,
    logs: Sequence[float],
    means: Sequence[float],
    placebos: Sequence[float | None],
    *,
    is_void: bool,
    why: str = "",
) -> Decision:
    """Return a decision with what speaks against it.

    Args:
        on: the combination.
        state: what its rounds came to.
        logs: log of base over it, by the medians of turns, one a round.
        means: the same by the means of turns.
        placebos: see `odds`.
        is_void: True if the base differed from itself.
        why: see `Decision.why`.
    """
    ratio = ratio_of(logs)
    if is_void:
        return Decision(on, "undecided", ratio, "the same plan differed from itself")
    by_means = ratio_of(means).median
    if state == "faster" and by_means < 1 + WORTH:
        # What lengthens few steps hides from medians: a collector, a reader that stalls.
        return Decision(on, "undecided", ratio, f"{by_means:.2f}x by the means of turns")
    return Decision(on, state, ratio, why, odds(logs, placebos)[0], by_means)


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
        (k for k in range(count, count // 2, -1) if evidence(count, k) < INTERVAL), count // 2
    )
    at = max(0, count - inside - 1)
    low, high = ordered[at], ordered[count - 1 - at]
    return Ratio(exp(median(means)), exp(low), exp(high), count)
