"""Races of plans against the plain run, in fresh processes, as far as the budget goes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race, race
from hotlap.plan import Plan
from hotlap.tuning.candidates import LOOKS_FASTER
from hotlap.tuning.result import TrialRow
from hotlap.tuning.time_plan import TURN_S
from hotlap.tuning.tuner import Tuner
from hotlap.tuning.whole_run_savings import keep_compiling

TWINS = ("plain", "plain again", "plain once more")
_ROUNDS = (7, 12)
"""Turns of each arm in the first race, and in later ones, which decide."""
_MORE_ROUNDS = 2
"""How many times as many there may be where more turns may tell more."""


def race_plans(
    tuner: Tuner,
    seen: Observation,
    arms: Sequence[Arm],
    *,
    until: float,
    number: int,
    floor: float = 0.0,
    twins: Sequence[str] = TWINS,
    rounds: int | None = None,
    turn_s: float | None = None,
    is_settled: Callable[[Race], bool] | None = None,
) -> Race:
    """Race the arms against the plain run.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        arms: the plans.
        until: when to stop.
        number: of the race, from 1.
        floor: that of the race before, which a gain must exceed as well.
        twins: names of the arms that are the plain run.
        rounds: turns of each arm, what is usual for that race if None.
        turn_s: seconds of a turn, what is usual if None.
        is_settled: True if more turns would tell nothing more; where nothing looks faster, or what
            does is shown to be, if None.
    """
    facts = tuner.to_its_end(seen).trace.facts
    plain = [Arm(name, Plan({}), tuner.lab) for name in twins]
    rounds = rounds or _ROUNDS[number > 1]
    result = race(
        [*plain, *arms],
        twins=twins,
        rounds=rounds,
        most_rounds=_MORE_ROUNDS * rounds,
        settled=is_settled or (lambda so_far: not _more_may_tell(so_far, floor)),
        seed=number,
        turn_s=turn_s or TURN_S,
        deadline=until,
        # A recipe is trained for as long as there are turns.
        planned_steps=None if tuner.owns_step else facts.planned_steps,
        step_ms=seen.trace.step_ms()["median"],
        age=tuner.age_for(seen, (arm.plan for arm in arms)),
        at_once=facts.processes_at_once,
        # Each uses every core until then.
        one_by_one=seen.trace.evaluates_first,
        progress=tuner.progress,
    )
    tuner.ended_after = result.ended_after or tuner.ended_after
    tuner.plain_peak_bytes = max(
        (each.peak_bytes or 0 for each in plain), default=tuner.plain_peak_bytes or 0
    )
    result = without_too_large(result, tuner.memory)
    keep_compiling(tuner, result)
    for arm in arms:
        done = arm.name in result.arms
        tuner.trials.append(
            TrialRow(
                arm.plan,
                number,
                result.ratio(arm.name) if done else None,
                result.spread(arm.name) if done else None,
                arm.failed or "",
                result.ratio_of_means(arm.name) if done else None,
                done and result.took_effect(arm.name),
                arm.peak_bytes,
            )
        )
    return result


def without_too_large(race: Race, memory: int | None) -> Race:
    """Return the race without the plans that held more memory than there may be.

    Args:
        race: its arms say in `failed` why they are left out.
        memory: the limit in bytes, None for none.
    """
    kept = dict(race.arms)
    for name, arm in race.arms.items():
        held = arm.peak_bytes or 0
        if memory is not None and held > memory and name not in race.twins:
            arm.failed = f"it held {held / 2**20:,.0f} MiB of {memory / 2**20:,.0f} MiB"
            del kept[name]
    return replace(race, arms=kept)


def _more_may_tell(so_far: Race, floor: float) -> bool:
    """True if something looks faster than `floor`, and more turns may show that it is."""
    names = [name for name in so_far.arms if name not in so_far.twins]
    return any(
        looks_faster(so_far, name)
        and so_far.ratio(name).median > 1 + floor
        and not so_far.gains(name, max(floor, so_far.floor))
        for name in names
    )


def arms_that_fit(tuner: Tuner, until: float) -> int:
    """Return how many arms beside the twins can start and take some turns until then.

    Of more arms than fit into a device's memory with their twins as many as fit; where not one
    does, all take their turns in processes that are started for them, see `race`.

    Args:
        tuner: what the tuning shares.
        until: when the race ends.
    """
    by_time = max(0, int((until - time.monotonic()) / tuner.time_plan.arm_s) - len(TWINS))
    at_once = tuner.time_plan.processes
    if at_once is None or at_once <= len(TWINS):
        return by_time
    return min(by_time, at_once - len(TWINS))


def until_next(tuner: Tuner, least_s: float | None = None) -> float:
    """Return when the next race ends: as planned, or later if it would not take place otherwise.

    What is kept for proofs is of no use while nothing has been found that could be proven.

    Args:
        tuner: what the tuning shares.
        least_s: seconds of the shortest race, of one plan and its twins if None.
    """
    planned = tuner.time_plan
    if least_s is None:
        least_s = (len(TWINS) + 1.1) * planned.arm_s
    least = time.monotonic() + least_s
    if planned.second_until >= least or least > tuner.budget.deadline(0.0):
        return planned.second_until
    return least


def looks_faster(race: Race, name: str) -> bool:
    return race.took_effect(name) and race.ratio(name).median > LOOKS_FASTER
