"""What autocast does to the memory and the time of a subject, by trials with it and without."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotlap.diagnosis.time_plan import Clock
from hotlap.errors import HotlapError, TrialError
from hotlap.lab.autocast import COUNTED, PhaseTimes, time_autocast
from hotlap.lab.memory import MemoryObservation, watch_memory
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.trace.memory_schema import MemoryTrace, Peak

FORMAT = "bfloat16"
"""What autocast computes in where a trial switches it on."""
_ON, _OFF = "on", "off"
_MOST_S = 15.0
_LEAST_S = 1.0
"""Seconds of steps in turns."""


@dataclass(frozen=True)
class AutocastEffect:
    """A subject as it is, and with autocast switched."""

    change: str
    """What the trials have done: `on` where the subject uses no autocast, `off` where it does."""
    format: str
    """What autocast computes in, as in `bfloat16`."""
    as_it_is: Peak | None = None
    switched: Peak | None = None
    """Peaks over the same number of steps; None if nothing was compared, see `why_not`."""
    times: Mapping[str, PhaseTimes] = field(default_factory=dict)
    """Phase -> ms; empty if nothing was timed, see `why_not_timed`."""
    why_not: str = ""
    why_not_timed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return both ways by what they are, not by which came first."""
        as_it_is = {"peak": self.as_it_is, "ms": {k: v.as_it_is for k, v in self.times.items()}}
        switched = {"peak": self.switched, "ms": {k: v.switched for k, v in self.times.items()}}
        plain, under = (as_it_is, switched) if self.change == _ON else (switched, as_it_is)
        return {
            "used": self.change == _OFF,
            "format": self.format,
            "without": _way(**plain),
            "with": _way(**under),
            "switched_is_faster_by": {k: v.ratio for k, v in self.times.items()},
            "steps_per_turn": COUNTED,
            "why_not": self.why_not,
            "why_not_timed": self.why_not_timed,
        }


def _way(peak: Peak | None, ms: Mapping[str, Any]) -> dict[str, Any] | None:
    if peak is None:
        return None
    return {"peak_bytes": peak.bytes, "by_kind": dict(peak.kinds), "ms": dict(ms)}


def find_autocast_effect(
    lab: Lab,
    seen: MemoryObservation,
    plan: Plan,
    clock: Clock,
    *,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> AutocastEffect:
    """Switch autocast, and compare: memory from steps with a ledger, time from steps without.

    Args:
        lab: an entered `Lab`.
        seen: the subject as it is.
        plan: under which that was seen.
        clock: what is left of the budget.
        seconds: what steps may take in which memory is observed.
        progress: called with a line now and then.
    """
    is_used = bool(seen.trace.autocast)
    change = _OFF if is_used else _ON
    effect = AutocastEffect(change, seen.trace.autocast or FORMAT)
    if not seen.trace.formats:
        return replace(effect, why_not="no operator of the plain run was observed")
    if is_used and seen.trace.autocast not in seen.trace.formats:
        return replace(effect, why_not=f"nothing under it is computed in {effect.format}")
    if clock.left < seen.seconds:
        return replace(effect, why_not=_too_short(clock, seen.seconds + seen.trace.setup_s))
    progress(f"the memory of the first steps with autocast switched {change}")
    is_recipe = lab.subject.kind == "recipe"
    switched = plan.without("autocast") if is_used else plan
    if is_recipe and not is_used:
        switched = plan.with_technique("autocast", dtype="bf16")
    try:
        other = watch_memory(lab, switched, seconds=seconds, autocast=change, progress=progress)
    except HotlapError as error:
        return replace(effect, why_not=_why_failed(error))
    effect = _compare(effect, seen.trace, other)
    if effect.why_not:
        return effect
    left_s = min(_MOST_S, clock.left - seen.trace.setup_s)
    if left_s < _LEAST_S:
        missing = seen.trace.setup_s + _LEAST_S
        return replace(effect, why_not_timed=_too_short(clock, missing))
    progress(f"steps in turns, with autocast and without: about {left_s:.0f} s")
    timed = plan if is_used else switched
    try:
        times = time_autocast(lab, timed, change, seconds=left_s, progress=progress)
    except HotlapError as error:
        return replace(effect, why_not_timed=_why_failed(error))
    return replace(effect, times=times)


def _compare(
    effect: AutocastEffect, trace: MemoryTrace, other: MemoryObservation
) -> AutocastEffect:
    """Return the effect with both peaks, or with why the trial says nothing."""
    proof = next((row for row in other.techniques if row["name"] == "autocast"), None)
    if proof is not None and proof["state"] == "refused":
        return replace(effect, why_not=f"refused: {proof['why']}")
    if effect.change == _ON and FORMAT not in other.trace.formats:
        words = f"it would change nothing: no operator of a step computes in {FORMAT} under it"
        return replace(effect, why_not=words)
    steps = min(trace.steps, other.trace.steps)
    peaks = trace.first(steps).peak, other.trace.first(steps).peak
    return replace(effect, as_it_is=peaks[0], switched=peaks[1])


def _too_short(clock: Clock, missing_s: float) -> str:
    total = clock.seconds - clock.left + missing_s + _LEAST_S
    return f"the rest of the budget is too short: use --budget {math.ceil(total)}s or more"


def _why_failed(error: HotlapError) -> str:
    """Return in one line why a trial gave nothing; of a crash what it printed last."""
    printed = error.output.strip().splitlines() if isinstance(error, TrialError) else []
    if isinstance(error, TrialError) and error.reason == "crashed" and printed:
        return f"the trial failed: {printed[-1]}"
    return str(error).splitlines()[0].rstrip(".:")
