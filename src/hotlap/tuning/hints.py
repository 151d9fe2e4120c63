"""Hints of an earlier diagnosis, and whether the tuning agrees with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.task import TaskFacts
from hotlap.techniques import Numerics, Technique
from hotlap.tuning.candidates import Candidate


@dataclass(frozen=True)
class Hint:
    """A plan of one technique that was measured to be faster, by a diagnosis for example."""

    plan: Plan
    measured: float
    """How many times faster it was."""
    low: float
    high: float
    """What it may have been, by its interval and by what identical runs differed by."""


@dataclass(frozen=True)
class HintAnswer:
    """What a tuning found of a hint."""

    plan: Plan
    measured: float
    """How many times faster the diagnosis found it."""
    raced: Ratio | None
    """How many times faster it was here, alone; None if it was not raced."""
    why: str
    """Both figures in words, or why it was not raced."""
    agrees: bool
    """True if the two intervals, each widened by what identical runs differed by, overlap."""


def put_first(
    candidates: Sequence[Candidate],
    hints: Sequence[Hint],
    facts: TaskFacts,
    host: Any,
    known: Mapping[str, Technique],
    weakest: Numerics,
) -> tuple[list[Candidate], int, dict[str, str]]:
    """Return the candidates with those that were hinted at in front.

    Returns:
        The candidates, how many of them were hinted at, and plan -> reason for hints that are no
        candidate.
    """
    first: list[Candidate] = []
    reasons: dict[str, str] = {}
    for hint in hints:
        reason = "it is not a plan of one technique"
        candidate = next((c for c in candidates if c.plan() == hint.plan), None)
        if candidate is None and len(hint.plan.techniques) == 1:
            ((name, options),) = hint.plan.techniques.items()
            candidate, reason = _candidate(name, options, facts, host, known, weakest)
        if candidate is not None:
            first.append(candidate)
        else:
            reasons[str(hint.plan)] = reason
    rest = [c for c in candidates if all(c.plan() != one.plan() for one in first)]
    return [*first, *rest], len(first), reasons


def _candidate(
    name: str,
    options: Mapping[str, Any],
    facts: TaskFacts,
    host: Any,
    known: Mapping[str, Technique],
    weakest: Numerics,
) -> tuple[Candidate | None, str]:
    if name not in known:
        return None, "the technique is not among those that may be used"
    technique = known[name]
    built = technique.options(options)
    reason = technique.why_not(facts, host, built)
    ranks = list(Numerics)
    claims = technique.numerics(built)
    if reason is None and ranks.index(claims) > ranks.index(weakest):
        reason = f"its numerics are `{claims}`, only `{weakest}` or better is accepted"
    if reason is not None:
        return None, reason
    return Candidate(name, dict(options), claims, technique.excludes), ""


def answer(
    hint: Hint, raced: Ratio | None, reason: str, floor: float, where: str = ""
) -> HintAnswer:
    """Say what a tuning found of a hint.

    Args:
        hint: what was measured before.
        raced: what it gave alone here.
        reason: why it was not raced, if it was not.
        floor: how far identical runs were apart in the races.
        where: it was raced, such as ` in one process`.
    """
    measured = f"{hint.plan}: the diagnosis measured {hint.measured:.2f}x"
    if raced is None:
        why = f"{measured}; not raced here: {reason}"
        return HintAnswer(hint.plan, hint.measured, None, why, agrees=False)
    words = (
        f"{measured}, the race of this tuning{where} {raced.median:.2f}x ({raced.low:.2f} to "
        f"{raced.high:.2f}, {raced.pairs} paired turns)"
    )
    agrees = raced.low / (1 + floor) <= hint.high and hint.low <= raced.high * (1 + floor)
    return HintAnswer(hint.plan, hint.measured, raced, words, agrees)
