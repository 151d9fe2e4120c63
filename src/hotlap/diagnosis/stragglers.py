"""What is known of several ranks together: which is the slowest, and in which phase."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from hotlap.trace.schema import Trace

_WORTH_SAYING = 1.1
"""How many times longer than the others' the slowest rank's own work takes."""


def with_other_ranks(trace: Trace, paces: Mapping[int, Mapping[str, Any]]) -> Trace:
    """Return the trace of the first rank with what only the others have seen.

    Args:
        trace: of the first rank.
        paces: other rank -> `unused_bytes`, and what `find_straggler` takes.
    """
    sums = trace.facts.sums
    if sums is None:
        return trace
    most = max([sums.unused_bytes, *(pace["unused_bytes"] for pace in paces.values())])
    facts = replace(trace.facts, sums=replace(sums, unused_bytes=most))
    return replace(trace, facts=facts)


def notes_on_ranks(trace: Trace, paces: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return what a diagnosis adds where several ranks train, see `find_straggler`."""
    first = (
        f"{trace.facts.ranks} ranks train; the first one was measured. Where it waits for the "
        "others is in its backward"
    )
    slowest = find_straggler(trace, paces)
    return [first] if slowest is None else [first, slowest]


def find_straggler(trace: Trace, paces: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return a sentence on the rank that the others wait for; None if their work is about equal.

    Args:
        trace: of the first rank.
        paces: other rank -> `phases` (ms in each, of its mean step) and `exposed_ms`.
    """
    own = {0: _own_work(trace.phase_means(), trace.facts.exposed_ms)}
    own |= {rank: _own_work(pace["phases"], pace["exposed_ms"]) for rank, pace in paces.items()}
    if len(own) < 2:
        return None
    totals = {rank: sum(phases.values()) for rank, phases in own.items()}
    slowest = max(totals, key=lambda rank: totals[rank])
    others = [rank for rank in own if rank != slowest]
    usual = median(totals[rank] for rank in others)
    if totals[slowest] < _WORTH_SAYING * usual:
        return None
    usual_of = {name: median(own[rank][name] for rank in others) for name in own[slowest]}
    phase = max(usual_of, key=lambda name: own[slowest][name] - usual_of[name])
    return (
        f"rank {slowest} is the slowest: its own work takes {totals[slowest]:.2f} ms a step, that "
        f"of the others {usual:.2f} ms. Most of the difference is in {phase}: "
        f"{own[slowest][phase]:.2f} instead of {usual_of[phase]:.2f} ms"
    )


def _own_work(phases: Mapping[str, float], exposed_ms: float) -> dict[str, float]:
    """Return the phases without the wait for the other ranks, which ends the backward."""
    return {**phases, "backward": max(0.0, phases["backward"] - exposed_ms)}
