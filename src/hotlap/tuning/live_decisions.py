"""What decisions of races in one process come to, and which combinations are raced next."""

from collections.abc import Callable, Collection, Sequence

from hotlap.lab.decisions import Combination, Decision
from hotlap.trial.evidence import WORTH

_LIKELY, _LIKELY_GAIN = 20.0, 1.02
"""Odds, and a ratio, from which on a technique is combined though its gain is not decided."""
_PROMISING = 4.0
"""Odds from which on a technique is tried together with others that look faster."""
FEW = 10
"""Rounds below which an interval is only the range of what was seen."""
_OPEN = 1.05
"""An interval that reaches so far rules no gain out."""

Excludes = Callable[[int, int], bool]
"""True if two techniques, by their numbers, cannot be used together."""


def find_best(decisions: Sequence[Decision]) -> Combination:
    """Return what is fastest of what is faster, or looks so; nothing if nothing is.

    What only looks so may be the faster of two, one of which was decided sooner; nothing is claimed
    before it is decided against the plain script.
    """
    faster = [each for each in decisions if each.state == "faster" or _looks_faster(each)]
    best = max(faster, key=lambda each: each.ratio.median if each.ratio else 0.0, default=None)
    return best.on if best is not None else ()


def is_clear(decision: Decision) -> bool:
    """True if it is decided, with an interval that is more than the range of what was seen."""
    is_decided = decision.state in ("faster", "not_faster")
    return is_decided and decision.ratio is not None and decision.ratio.pairs >= FEW


def _looks_faster(decision: Decision) -> bool:
    ratio = decision.ratio
    if decision.state != "undecided" or ratio is None:
        return False
    is_likely = decision.odds >= _LIKELY and ratio.median > _LIKELY_GAIN
    return is_likely or ratio.low > 1 + WORTH


def is_hope(decision: Decision) -> bool:
    """True if more turns may show that it is faster."""
    if decision.state != "undecided" or decision.why or decision.ratio is None:
        return False
    return decision.odds > 1 and decision.ratio.median > _LIKELY_GAIN


def is_open(decision: Decision) -> bool:
    """True if turns in one process say too little of it."""
    if decision.state != "undecided":
        return False
    ratio = decision.ratio
    return ratio is None or ratio.pairs < FEW or ratio.high > _OPEN


def all_that_look_faster(
    chosen: Combination, alone: Sequence[Decision], excludes: Excludes
) -> Combination:
    """Return `chosen` with whatever looks faster alone, nothing if that is no more than one.

    Args:
        chosen: the fastest alone.
        alone: what each gave alone.
        excludes: see above.
    """
    gains = [
        (decision.ratio.median, decision.on[0])
        for decision in alone
        if decision.ratio is not None
        and decision.odds >= _PROMISING
        and decision.ratio.median > _LIKELY_GAIN
    ]
    found = list(chosen)
    for _, number in sorted(gains, reverse=True):
        if not any(number == each or excludes(each, number) for each in found):
            found.append(number)
    return tuple(sorted(found)) if chosen and len(found) > len(chosen) + 1 else ()


def as_fast_without(
    unsure: Collection[int], decisions: Sequence[Decision], chosen: Combination
) -> Combination:
    """Return what is as fast as `chosen` without something of `unsure`, the fastest; else nothing.

    Args:
        unsure: techniques that came together with others, and never gained by themselves.
        decisions: what a race on top of `chosen` said.
        chosen: the fastest so far.
    """
    simpler = {
        decision.on: decision.ratio.median
        for decision in decisions
        if {*decision.on} < {*chosen}
        and {*chosen} - {*decision.on} <= {*unsure}
        and decision.ratio is not None
        and decision.ratio.median > 1 - WORTH
        and decision.ratio.pairs >= FEW
    }
    return max(simpler, key=lambda on: simpler[on], default=())


def variants(chosen: Combination, usable: Sequence[int], excludes: Excludes) -> list[Combination]:
    """Return `chosen` with each other technique, added or in the place of what it excludes, and
    without each of its own.

    Args:
        chosen: the fastest so far.
        usable: the techniques that may be added.
        excludes: see above.
    """
    found = []
    for other in usable:
        if other not in chosen:
            kept = [number for number in chosen if not excludes(number, other)]
            found.append(tuple(sorted((*kept, other))))
    if len(chosen) > 1:
        found += [tuple(each for each in chosen if each != out) for out in chosen]
    return [each for each in dict.fromkeys(found) if len(each) > 1 or len(chosen) > 1]
