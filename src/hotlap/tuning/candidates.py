"""Candidate plans: techniques worth a trial on this script and host, and their combinations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.attach import on_ranks
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.plan.record import in_words
from hotlap.rules import Nomination
from hotlap.task import TaskFacts
from hotlap.techniques import Numerics, Technique

_RANKS = list(Numerics)
LOOKS_FASTER = 1.02
"""Above this median a plan is worth another race, though it cannot be told from noise yet."""
_HARMFUL = 0.9
"""A plan whose whole interval lies below this slows the run down."""
_LONG_SET_UP_S = 5.0
"""A set-up that takes as long as several turns of all the others."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One technique with options, to be tried."""

    technique: str
    options: Mapping[str, Any]
    numerics: Numerics
    excludes: tuple[str, ...] = ()
    """Techniques that cannot be in one plan with it."""

    @property
    def name(self) -> str:
        """The technique with its options, as in `threads(count=1)`."""
        return in_words(self.technique, self.options)

    def plan(self) -> Plan:
        return Plan({self.technique: dict(self.options)})


def nominate(
    facts: TaskFacts,
    host: Any,
    known: Mapping[str, Technique],
    weakest: Numerics,
    nominations: Sequence[Nomination] = (),
    phases: Mapping[str, float] | None = None,
    *,
    own_step: bool = False,
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the candidates, and technique -> reason for those that cannot serve.

    Args:
        facts: what the observed run showed.
        host: where it runs.
        known: the techniques by name, in order.
        weakest: leave out whatever claims less than this.
        nominations: what the rules suspect; of one technique's options the nominated come first.
        phases: ms of a mean step by phase: what acts on the larger part is tried first.
        own_step: the engine takes the steps, as it does for recipes: techniques may act on them.
    """
    found: list[Candidate] = []
    refused: dict[str, str] = {}
    for name, technique in known.items():
        reasons = []
        for values in technique.candidates(facts, host):
            options = technique.options(values)
            claims = technique.numerics(options)
            reason = technique.why_not(facts, host, options)
            is_engines = technique.engine_only or technique.seam_of(options) == "step"
            if is_engines and not own_step:
                reason = "it acts on the engine's step: use it with `hotlap train RECIPE`"
            if reason is None and facts.ranks > 1:
                reason = on_ranks.why_not(technique, options)
            if reason is None and _RANKS.index(claims) > _RANKS.index(weakest):
                reason = f"its numerics are `{claims}`, only `{weakest}` or better is accepted"
            if reason is None:
                found.append(Candidate(name, dict(values), claims, technique.excludes))
            else:
                reasons.append(reason)
        if not any(candidate.technique == name for candidate in found):
            refused[name] = reasons[0] if reasons else technique.without_candidates
    order = [plan for nomination in nominations for plan in nomination.remedies]
    found.sort(key=lambda c: order.index(c.plan()) if c.plan() in order else len(order))
    return _broad_first(found, known, phases or {}), refused


def _broad_first(
    found: Sequence[Candidate], known: Mapping[str, Technique], phases: Mapping[str, float]
) -> list[Candidate]:
    """Put one option of every technique before the second of any: a budget may end early."""
    names = [candidate.technique for candidate in found]
    seen: dict[str, int] = {}
    ranks: dict[Candidate, int] = {}
    for candidate in found:
        ranks[candidate] = seen.get(candidate.technique, 0)
        technique = known[candidate.technique]
        ranks[candidate] += not {*technique.rather_than}.isdisjoint(names)
        ranks[candidate] += technique.set_up_s >= _LONG_SET_UP_S
        seen[candidate.technique] = seen.get(candidate.technique, 0) + 1

    def saved_ms(candidate: Candidate) -> float:
        technique = known[candidate.technique]
        return technique.saved_ms(phases, technique.options(candidate.options))

    return sorted(found, key=lambda c: (ranks[c], -saved_ms(c)))


def combine(candidates: Sequence[Candidate]) -> Plan:
    """Return the plan that holds all of them, the last word for a technique that comes twice."""
    return Plan({candidate.technique: dict(candidate.options) for candidate in candidates})


def combinations(
    singles: Mapping[Candidate, Ratio], gains: Sequence[Candidate], limit: int
) -> dict[str, Plan]:
    """Return the plans worth a second race, the most promising first.

    For each kind of numerics: the best option of every technique that gained, together, and of
    every one that looked faster. Then the same with one of them taken out, and with one added that
    gained nothing alone: what is hidden behind a slow feed shows only when the feed is fast. What
    clearly slowed the run down is not tried again.

    Args:
        singles: what each candidate gave alone.
        gains: those whose gain lies above the noise, the largest first.
        limit: plans at most.
    """
    plans: dict[str, Plan] = {}
    full: list[Candidate] = []
    for pool in (gains, find_promising(singles)):
        for numerics in (Numerics.EXACT, Numerics.ROUNDING, Numerics.STREAM):
            allowed = [c for c in pool if _RANKS.index(c.numerics) <= _RANKS.index(numerics)]
            chosen = _best_of_each(allowed)
            if chosen and _name(chosen) not in plans:
                plans[_name(chosen)] = combine(chosen)
                full = chosen
    hidden = sorted(
        (c for c in singles if c not in gains and singles[c].high > _HARMFUL),
        key=lambda c: singles[c].median,
        reverse=True,
    )
    variants = []
    for base in (full, [c for c in full if c.numerics is Numerics.EXACT]):
        variants += [
            [*[c for c in base if c.technique != extra.technique], extra]
            for extra in hidden
            if base and not excludes(base, extra)
        ]
        variants += [[c for c in base if c is not out] for out in base if len(base) > 1]
    for variant in variants:
        if len(plans) < limit:
            plans.setdefault(_name(variant), combine(variant))
    return plans


def find_promising(singles: Mapping[Candidate, Ratio]) -> list[Candidate]:
    """Return the candidates that looked faster alone, above the noise or not, the best first."""
    faster = [c for c, ratio in singles.items() if ratio.median > LOOKS_FASTER]
    return sorted(faster, key=lambda c: singles[c].median, reverse=True)


def excludes(base: Sequence[Candidate], extra: Candidate) -> bool:
    """True if one of them cannot be in one plan with that candidate."""
    return any(c.technique in extra.excludes or extra.technique in c.excludes for c in base)


def _best_of_each(candidates: Sequence[Candidate]) -> list[Candidate]:
    chosen: list[Candidate] = []
    for candidate in candidates:
        taken = any(c.technique == candidate.technique for c in chosen)
        if not taken and not excludes(chosen, candidate):
            chosen.append(candidate)
    return chosen


def _name(candidates: Sequence[Candidate]) -> str:
    return " + ".join(sorted(candidate.name for candidate in candidates))
