"""Predicts the whole run, plain and under the best plan, from what was watched and raced."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median

from hotlap.lab.observing import Observation, watch
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.whole_run import (
    WholeRun,
    excess_of_first_steps,
    predict_from_plain,
    predict_whole_run,
    seconds_between_epochs,
    shows_epochs,
    steady_step_ms,
)
from hotlap.trace.schema import Trace
from hotlap.tuning.tuner import Tuner
from hotlap.tuning.whole_run_savings import gained_late, longer_start_s

LEAST_WATCH_S = 3.0
_SLOWED = 1.05
"""Above what a step's mean is beyond its median anyhow."""


def predict_plain(
    tuner: Tuner, seen: Observation, final: Race | None, beside: Trace | None = None
) -> WholeRun:
    """Predict the plain run, see `predict_whole_run`."""
    planned = seen.trace.facts.planned_steps
    if final is None:
        return predict_whole_run(seen.trace, planned, None, beside)
    late_ms = None
    if tuner.slowdown > 1 or _is_slowed(tuner):
        late_ms = tuner.slowdown * _early_ms(tuner, seen, final)
    found = predict_whole_run(seen.trace, planned, _plain_ms(tuner, final), beside, late_ms=late_ms)
    slowed = tuner.slowed if _is_slowed(tuner) else 1.0
    return replace(found, slowed=slowed, slowdown=max(1.0, tuner.slowdown))


def predict_both(
    tuner: Tuner,
    seen: Observation,
    final: Race,
    name: str,
    plain: WholeRun,
    by_means: float | None,
) -> tuple[WholeRun, WholeRun, Observation | None]:
    """Run the plan as a user would, from its very start; return what that predicts of both runs.

    Returns:
        The prediction of the plain run, which may have been watched for less, that of the plan's,
        and what was watched, None if there was no time for it.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        final: the last race.
        name: of the plan's arm.
        plain: what is predicted of the plain run as long as it alone was watched.
        by_means: how many times faster the plan's steps are, as the last race says if None.
    """
    plan, planned = final.arms[name].plan, seen.trace.facts.planned_steps
    ratio = by_means or final.ratio_of_means(name) * gained_late(tuner, plan)
    spare = max(0.0, tuner.budget.left - 1.0)
    if spare < seen.trace.setup_s + LEAST_WATCH_S:
        tuner.budget.not_reached.append("the plan's own whole run, watched from its start")
        return plain, _divided(tuner, seen.trace, final, name, plain, ratio), None
    tuner.progress("watching the plan from its very start")
    seconds = spare - seen.trace.setup_s - 0.5
    own = watch(tuner.lab, plan, seconds=seconds, epochs=2, steps=tuner.most_steps)
    plain = predict_plain(tuner, seen, final, own.trace)
    fills = tuner.reads_all(plan)
    if planned is not None and _is_one_stretch(seen.trace, own.trace, planned, fills=fills):
        step_ms = min(_plain_ms(tuner, final), seen.trace.step_ms()["mean"])
        if tuner.slowdown > 1 or _is_slowed(tuner):
            step_ms = tuner.slowdown * _early_ms(tuner, seen, final)
        # Watched steps may have been faster than those of the race: they save no more of their own.
        saved_s = min(planned * step_ms / 1e3, plain.steps_s) * (1 - 1 / ratio)
        return plain, predict_from_plain(plain, seen.trace, own.trace, saved_s), own
    arm = final.arms[name]
    steady_ms = _steady_ms(tuner, arm.turns_ms, arm.means_ms)
    late_ms = steady_ms if _is_slowed(tuner) else None
    if tuner.slowdown > 1 and not tuner.acts_late(plan):
        # Its steps become slower by as much as the plain run's do.
        late_ms = steady_ms + (tuner.slowdown - 1) * _early_ms(tuner, seen, final)
    if late_ms is None and not tuner.acts_late(plan):
        plain_ms = steady_step_ms(seen.trace, _plain_ms(tuner, final))
        own_ms = steady_step_ms(own.trace, steady_ms)
        late_ms = _as_in_turns(plain_ms, own_ms, final.ratio(name), ratio)
    under = predict_whole_run(
        own.trace, planned, steady_ms, seen.trace, late_ms=late_ms, is_served=fills
    )
    return plain, under, own


def _divided(
    tuner: Tuner, seen: Trace, final: Race, name: str, plain: WholeRun, ratio: float
) -> WholeRun:
    """Return the plain run with its steps divided by the speed-up, where the plan's was not seen.

    Its start is the longest that a race has shown; what comes between epochs is as long as before.
    """
    if plain.seconds is None or seen.facts.planned_steps is None:
        return plain
    planned, fills = seen.facts.planned_steps, tuner.reads_all(final.arms[name].plan)
    as_before = min(plain.steps_s, _first_epoch_s(seen) if fills else 0.0)
    steps_s = as_before + (plain.steps_s - as_before) / ratio
    start_s = plain.start_s + longer_start_s(tuner, final, name)
    between_s = plain.between_s
    if fills:
        between_s = min(between_s, seconds_between_epochs(seen, planned, is_served=True))
    return WholeRun(
        start_s + steps_s + between_s,
        "the plain run's, its steps divided by the speed-up",
        start_s=start_s,
        between_s=between_s,
        steps=plain.steps,
    )


def _as_in_turns(plain_ms: float, own_ms: float, raced: Ratio, ratio: float) -> float | None:
    """Return the ms of the plan's steps if the machine was not as fast in both watches, else None.

    Of turns that alternate the same state of the machine has made both.

    Args:
        plain_ms: of a plain step, in a whole run.
        own_ms: of a step under the plan.
        raced: how many times as fast steps are, by such turns.
        ratio: the same by their means.
    """
    low, high = min(raced.low, ratio), max(raced.high, ratio)
    return None if low <= plain_ms / own_ms <= high else plain_ms / ratio


def _is_slowed(tuner: Tuner) -> bool:
    """True if other processes had the cores for a part of the time."""
    return tuner.slowed > _SLOWED


def _steady_ms(tuner: Tuner, medians: Sequence[float], means: Sequence[float]) -> float:
    """Return the mean ms of a step in a whole run, by the turns of a race in fresh processes.

    Beside other processes these are too few: the undisturbed ones say what a step takes alone, and
    the race in the watched process, which is longer, what the others add.
    """
    return tuner.slowed * median(medians) if _is_slowed(tuner) else fmean(means)


def _plain_ms(tuner: Tuner, final: Race) -> float:
    """Return the mean ms of the plain run's steps, see `_steady_ms`."""
    return _steady_ms(tuner, final.base_ms, [fmean(twin) for twin in final.twins_means_ms])


def _early_ms(tuner: Tuner, seen: Observation, final: Race) -> float:
    """Return the ms of a plain step before it becomes slower."""
    plans = [arm.plan for arm in final.arms.values()]
    # Where a race waited for that age its steps are slow.
    return _plain_ms(tuner, final) / (tuner.slowdown if tuner.age_for(seen, plans) else 1.0)


def _is_one_stretch(seen: Trace, own: Trace, planned_steps: int, *, fills: bool) -> bool:
    """True if the run has no later epochs, in which what `fills` the memory would first serve."""
    # A run that has ended may have stopped early: its steps, and savings, are fewer than planned.
    has_ended = "script" in (seen.ended, own.ended)
    if has_ended or shows_epochs(seen) or shows_epochs(own):
        return False
    epoch = seen.facts.steps_per_epoch
    return epoch is None or (epoch >= planned_steps and not fills)


def _first_epoch_s(trace: Trace) -> float:
    """Return the seconds of the first epoch's steps, of all that were seen if it did not end."""
    ends = [start for start in trace.epoch_starts if start > 0]
    seconds = sum(map(sum, trace.steps[: ends[0] if ends else None])) / 1e3
    return max(0.0, seconds - excess_of_first_steps(trace))
