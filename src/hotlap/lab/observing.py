"""Observed runs, and what they say of the whole run that the user planned."""

import itertools
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from hotlap.lab.trial import Lab, observe
from hotlap.plan import Plan
from hotlap.trace.schema import Trace

_LEAST_START_UP_S = 60.0
"""Importing torch and reading a data set may take so long on a slow disk."""
_EXIT_S = 0.2
"""What Python and torch take to go away, after the script's last line."""
_ENOUGH_STEPS = 30


@dataclass(frozen=True)
class Observation:
    """A trace, and which techniques took effect in it."""

    trace: Trace
    techniques: list[dict[str, str]]
    """{name, state, why}, as the process itself proved it."""


def watch(
    lab: Lab,
    plan: Plan | None = None,
    *,
    seconds: float,
    epochs: int = 1,
    naming_s: float = 0.0,
) -> Observation:
    """Observe the script for whole epochs, as far as `seconds` reach.

    Raises:
        TrialError: it crashed, hung, or never trained.
    """
    report: dict[str, Any] = observe(
        lab,
        plan,
        timeout_s=max(_LEAST_START_UP_S, seconds) + 2 * seconds,
        seconds=seconds,
        epochs=epochs,
        steps=10**9,
        naming_s=naming_s,
    )
    trace = replace(Trace.from_json(report["trace"]), ended=report["ended"])
    return Observation(trace, report["techniques"])


@dataclass(frozen=True)
class WholeRun:
    """The predicted time of the run that the user planned, from process start to end."""

    seconds: float | None
    """None if the number of steps is not known."""
    covers: str
    """What the prediction rests on."""


def predict_whole_run(
    trace: Trace, planned_steps: int | None, steady_ms: float | None = None
) -> WholeRun:
    """Predict from a run's first epoch, its last whole one, and what comes between epochs.

    The first epoch is counted as it was (it may read what later ones have in memory).

    Args:
        trace: the run, watched from its start.
        planned_steps: optimizer steps of the whole run.
        steady_ms: ms per step of later epochs, from a race. Of the two measurements the smaller
            one counts: whatever disturbs a host only slows it.
    """
    if planned_steps is None:
        return WholeRun(None, trace.facts.planned_why)
    totals = [sum(row) / 1e3 for row in trace.steps]
    begun = trace.setup_s + totals[0]
    if trace.ended == "script":
        return WholeRun(trace.setup_s + sum(totals) + _EXIT_S, "the whole run was seen")
    starts = [start for start in trace.epoch_starts if start < len(totals)]
    # The record of an epoch's first step holds the evaluation of the epoch before it.
    periods = [sum(totals[a + 1 : b + 1]) for a, b in itertools.pairwise(starts)]
    if not periods:
        return _from_steps_alone(trace, planned_steps, steady_ms)
    per_epoch = starts[1] - starts[0]
    of_last = fmean(totals[starts[-2] + 1 : starts[-1]] or totals)
    between = periods[-1] - per_epoch * of_last
    after = totals[starts[-1] + 1 :]
    steady = fmean(after) if len(after) >= _ENOUGH_STEPS else of_last
    if steady_ms is not None:
        steady = min(steady, steady_ms / 1e3)
    later = between + per_epoch * steady
    seconds = begun + periods[0] + (planned_steps / per_epoch - 1) * later + _EXIT_S
    return WholeRun(seconds, f"{len(periods)} whole epochs of {per_epoch} steps")


def _from_steps_alone(trace: Trace, planned_steps: int, steady_ms: float | None) -> WholeRun:
    totals = [sum(row) / 1e3 for row in trace.steps]
    first = fmean(totals[1:] or totals)
    epoch = trace.facts.steps_per_epoch or planned_steps
    later = first if steady_ms is None else steady_ms / 1e3
    seconds = (
        trace.setup_s
        + totals[0]
        + min(epoch, planned_steps) * first
        + max(0, planned_steps - epoch) * later
        + _EXIT_S
    )
    return WholeRun(seconds, f"{len(totals)} steps; what comes after an epoch was not seen")
