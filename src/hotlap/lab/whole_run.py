"""`predict_whole_run`: the time of a whole run, from the trace of its beginning. Runs nothing."""

import itertools
from dataclasses import dataclass
from statistics import fmean

from hotlap.trace.schema import Trace

_EXIT_S = 0.2
"""What Python and torch take to go away, after the script's last line."""


_ENOUGH_STEPS = 30


def seconds_to_read(trace: Trace) -> float:
    """Return about how many seconds it takes to read every training sample."""
    loaders = [loader for loader in trace.facts.loaders if loader.training]
    data_ms = trace.phase_means().get("data", 0.0)
    workers = max((loader.num_workers for loader in loaders), default=0)
    if workers:
        # At the most: they may have read during all of the step.
        data_ms = trace.step_ms()["mean"] * workers
    batches = [(each.length or 0) / max(1, each.batch_size or 1) for each in loaders]
    return data_ms * max(batches, default=0.0) / 1e3


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
        return WholeRun(trace.setup_s + sum(totals) + _EXIT_S, "the whole run was measured")
    starts = sorted({start for start in trace.epoch_starts if start < len(totals)})
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
    return WholeRun(seconds, f"{len(totals)} steps; the end of an epoch was not reached")
