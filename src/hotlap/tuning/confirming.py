"""Confirms in fresh processes what gained in one live process."""

from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.pairs import Race
from hotlap.plan import Plan
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.live_races import LiveRaces
from hotlap.tuning.racing import TWINS, arms_that_fit, race_plans, until_next
from hotlap.tuning.ranking import fastest_first
from hotlap.tuning.time_plan import CONFIRM_TURN_S
from hotlap.tuning.tuner import Tuner

_ROUNDS = 5
"""Turns of each arm: what gains is known, and processes differ by more than turns."""
_MOST_RACES = 2


def confirm(tuner: Tuner, seen: Observation, live: LiveRaces) -> Race | None:
    """Race the finalists, and the fastest one with each technique that cannot be switched live.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        live: what gained in one process, and what could not be tried there.

    Returns:
        The last race, None if there was no time for any.
    """
    best = next(iter(live.finalists))
    extended = _extended(tuner, best, live)
    plans = [*live.finalists, *extended]
    final = None
    for number in range(2, 2 + _MOST_RACES):
        until = until_next(tuner)
        raced = plans[: arms_that_fit(tuner, until, tuner.time_plan.confirm_s)]
        if not raced:
            needed_s = (len(TWINS) + 1.1) * tuner.time_plan.confirm_s + 3 * tuner.time_plan.prove_s
            words = f"a race in fresh processes of {', '.join(map(str, plans))}"
            tuner.budget.affords(words, needed_s)
        if final is None:
            _note_untried(tuner, [c for plan, c in extended.items() if plan not in raced])
        if not raced:
            break
        plural = "s" * (len(raced) != 1)
        tuner.progress(f"race {number}: {len(raced)} plan{plural}, in turns with {tuner.plain}")
        # A finalist may take long to start: that it gains is known.
        arms = [Arm(str(p), p, tuner.lab, is_awaited=p in live.finalists) for p in raced]
        final = race_plans(
            tuner,
            seen,
            arms,
            until=until,
            number=number,
            rounds=_ROUNDS,
            turn_s=CONFIRM_TURN_S,
            # Looked at once: stopping where it looks good would confirm too much.
            is_settled=lambda _: True,
        )
        tuner.floor = max(tuner.floor, final.floor)
        for arm in arms:
            if arm.plan in extended:
                tuner.notes.note_extension(extended[arm.plan], arm, final, best)
        if fastest_first(final, tuner.floor, live=live.finalists):
            break
        # Fresh processes once more, for the plan alone: one that was unlucky differs for life.
        plans = [best]
    return final


def _extended(tuner: Tuner, best: Plan, live: LiveRaces) -> dict[Plan, Candidate]:
    """Return `best` with each candidate that it can be combined with."""
    found: dict[Plan, Candidate] = {}
    for candidate in live.rest:
        own = tuner.known[candidate.technique].excludes
        if any(n in own or candidate.technique in tuner.known[n].excludes for n in best.techniques):
            tuner.notes.note_replaced(candidate, best)
        elif candidate.technique not in best.techniques:
            found[best.with_technique(candidate.technique, **candidate.options)] = candidate
    return found


def _note_untried(tuner: Tuner, candidates: list[Candidate]) -> None:
    if candidates:
        option = tuner.budget.ask(len(candidates) * tuner.time_plan.confirm_s)
        tuner.notes.note_untried(candidates, f"the budget is too short: use {option}")
