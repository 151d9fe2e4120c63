"""Confirms in fresh processes what gained in one live process."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import paired_ratio
from hotlap.plan import Plan
from hotlap.techniques import numerics_of
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.live_races import LiveRaces
from hotlap.tuning.racing import TWINS, race_plans, until_next
from hotlap.tuning.ranking import fastest_first
from hotlap.tuning.technique_notes import NO_TIME_FOR_RACES
from hotlap.tuning.time_plan import (
    CONFIRM_ROUNDS,
    CONFIRM_TURN_S,
    PROOF_RUNS,
    RECIPE_PROOF_RUNS,
)
from hotlap.tuning.tuner import Tuner

_MOST_RACES = 2
_FEWEST_TWINS = 2
"""Plain runs where there is no time for more: two still say how far equal processes differ."""


def confirm(tuner: Tuner, seen: Observation, live: LiveRaces) -> Race | None:
    """Race the finalists, and the fastest one with each technique that cannot be switched live.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        live: what gained in one process, and what could not be tried there.

    Returns:
        The last race, None if there was no time for any. A plan with one more technique is in it
        only if that was faster in two races: the fastest of several is the luckiest one as well.
    """
    best = next(iter(live.finalists))
    extended = _extend(tuner, best, live)
    plans = [*live.finalists, *extended]
    final = None
    for number in range(2, 2 + _MOST_RACES):
        # With room for what is rounded in the estimate.
        until = until_next(tuner, 1.1 * _race_s(tuner, TWINS[:_FEWEST_TWINS], [best]))
        twins, raced = _fit_to_time(tuner, until, plans, live)
        if not raced:
            needed_s = _race_s(tuner, TWINS, plans) + 3 * tuner.time_plan.prove_s
            words = f"a race in fresh processes of {', '.join(map(str, plans))}"
            tuner.budget.affords(words, needed_s)
        if final is None:
            _note_untried(tuner, [c for plan, c in extended.items() if plan not in raced])
        if not raced:
            break
        plural = "s" * (len(raced) != 1)
        tuner.progress(f"race {number}: {len(raced)} plan{plural}, in turns with {tuner.plain}")
        arms = _arms(tuner, live, raced)
        final = _race(tuner, seen, arms, twins, until=until, number=number)
        for arm in arms:
            if arm.plan in extended:
                tuner.notes.note_extension(extended[arm.plan], arm, final, best)
        leaders = _leaders(tuner, final, extended, best)
        final = _without(final, extended)
        if leaders:
            alone = final
            final = _race_again(tuner, seen, live, alone, leaders, number=number + 1)
            if final is not alone:
                return final
        if fastest_first(final, tuner.floor, to_confirm=tuner.gains_to_confirm()):
            break
        # Fresh processes once more, for the plan alone: one that was unlucky differs for life.
        plans = [best]
    return final


def _arms(tuner: Tuner, live: LiveRaces, plans: Sequence[Plan]) -> list[Arm]:
    # A finalist may take long to start: that it gains is known.
    return [Arm(str(plan), plan, tuner.lab, is_awaited=plan in live.finalists) for plan in plans]


def _race(
    tuner: Tuner,
    seen: Observation,
    arms: Sequence[Arm],
    twins: Sequence[str],
    *,
    until: float,
    number: int,
) -> Race:
    race = race_plans(
        tuner,
        seen,
        arms,
        until=until,
        number=number,
        twins=twins,
        rounds=CONFIRM_ROUNDS,
        turn_s=CONFIRM_TURN_S,
        # Looked at once: stopping where it looks good would confirm too much.
        is_settled=lambda _: True,
    )
    tuner.floor = max(tuner.floor, race.floor)
    return race


def _race_again(
    tuner: Tuner,
    seen: Observation,
    live: LiveRaces,
    alone: Race,
    leaders: Mapping[Plan, Candidate],
    *,
    number: int,
) -> Race:
    """Race plans that beat the best finalist once more: a process differs from others for life.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        live: what gained in one process.
        alone: the race in which they did, without them.
        leaders: these plans, the fastest first, and what each has more than the best finalist.
        number: of the new race.

    Returns:
        The new race, if one of them beats it there as well; else one with the finalists alone.
    """
    best, plans = next(iter(live.finalists)), [*live.finalists, *leaders]
    shortest = TWINS[:_FEWEST_TWINS], [best, next(iter(leaders))]
    until = tuner.time_plan.second_until
    twins, raced = _fit_to_time(tuner, until, plans, live)
    if leaders.keys().isdisjoint(raced):
        # A faster plan is worth a shorter proof, but not more than that of time.
        until = max(until, tuner.budget.deadline(_shortest_proof_s(tuner, leaders)))
        if time.monotonic() + _race_s(tuner, *shortest) <= until:
            twins, raced = shortest
    again = None
    if any(plan in leaders for plan in raced):
        names = ", ".join(str(plan) for plan in raced if plan in leaders)
        tuner.progress(f"race {number}: {names} once more, in turns with {tuner.plain}")
        again = _race(tuner, seen, _arms(tuner, live, raced), twins, until=until, number=number)
    lost = [p for p in leaders if again is None or not _leads(tuner, again, p, best)]
    for plan in lost:
        why = "another race did not show it again"
        if again is None or plan not in raced:
            why = f"no time for another race: use {tuner.budget.ask(_race_s(tuner, TWINS, plans))}"
        tuner.notes.note_once(leaders[plan], why)
    if again is None:
        return alone
    again = _without(again, lost)
    gained = fastest_first(again, tuner.floor, to_confirm=tuner.gains_to_confirm())
    if any(again.arms[name].plan in leaders for name in gained):
        return again
    if fastest_first(alone, tuner.floor, to_confirm=tuner.gains_to_confirm()):
        return alone
    return _without(again, leaders)


def _shortest_proof_s(tuner: Tuner, plans: Collection[Plan]) -> float:
    """Return the seconds of the shortest proof that any of these may be given."""
    planned = tuner.time_plan
    runs = PROOF_RUNS if tuner.time_plan.at_once else RECIPE_PROOF_RUNS
    fills = any(map(tuner.reads_all, plans))
    is_narrow = any(numerics_of(plan, tuner.known).best_verdict == "statistical" for plan in plans)
    narrow_s = planned.prove_narrow_s - planned.prove_s if is_narrow else 0.0
    return runs * planned.short_proof_s(fills=fills) + narrow_s


def _leaders(
    tuner: Tuner, race: Race, extended: Mapping[Plan, Candidate], best: Plan
) -> dict[Plan, Candidate]:
    """Return the plans that were faster than the best finalist, the fastest first."""
    found = [plan for plan in extended if _leads(tuner, race, plan, best)]
    found.sort(key=lambda plan: race.ratio(str(plan)).median, reverse=True)
    return {plan: extended[plan] for plan in found}


def _leads(tuner: Tuner, race: Race, plan: Plan, best: Plan) -> bool:
    """True if a plan was faster than the best finalist by more than identical runs differ."""
    name, other = str(plan), str(best)
    if name not in race.arms or other not in race.arms or not race.took_effect(name):
        return False
    lead = paired_ratio(race.arms[other].turns_ms, race.arms[name].turns_ms)
    return lead.median > 1 + tuner.floor


def _without(race: Race, plans: Collection[Plan]) -> Race:
    return replace(race, arms={n: arm for n, arm in race.arms.items() if arm.plan not in plans})


def _fit_to_time(
    tuner: Tuner, until: float, plans: Sequence[Plan], live: LiveRaces
) -> tuple[Sequence[str], Sequence[Plan]]:
    """Return the plain runs and the plans that there is time for until then; no plan if for none.

    The finalists come first among the plans, the fastest at their head.
    """
    finalists = [plan for plan in plans if plan in live.finalists]
    few = TWINS[:_FEWEST_TWINS]
    choices = [(TWINS, plans[:count]) for count in range(len(plans), len(finalists), -1)]
    choices += [(TWINS, finalists), (few, finalists), (few, finalists[:1])]
    for twins, chosen in choices:
        if time.monotonic() + _race_s(tuner, twins, chosen) <= until:
            return twins, chosen
    return few, []


def _race_s(tuner: Tuner, twins: Sequence[str], plans: Sequence[Plan]) -> float:
    """Return about how many seconds a race of these takes."""
    planned = tuner.time_plan
    fills = sum(tuner.reads_all(plan) for plan in plans)
    return (
        len(twins) + len(plans)
    ) * planned.confirm_s + planned.start_share * fills * planned.fill_s


def _extend(tuner: Tuner, best: Plan, live: LiveRaces) -> dict[Plan, Candidate]:
    """Return `best` with each candidate that it can be combined with."""
    found: dict[Plan, Candidate] = {}
    for candidate in live.rest:
        own = tuner.known[candidate.technique].excludes
        against = {
            name: options
            for name, options in best.techniques.items()
            if name in own or candidate.technique in tuner.known[name].excludes
        }
        if against:
            tuner.notes.note_replaced(candidate, Plan(against))
        elif candidate.technique not in best.techniques:
            found[best.with_technique(candidate.technique, **candidate.options)] = candidate
    return found


def _note_untried(tuner: Tuner, candidates: list[Candidate]) -> None:
    if candidates:
        option = tuner.budget.ask(len(candidates) * tuner.time_plan.confirm_s)
        tuner.notes.note_untried(candidates, f"{NO_TIME_FOR_RACES}: use {option}")
