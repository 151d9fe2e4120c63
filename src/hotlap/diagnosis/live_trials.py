"""Trials in the process that was watched: what can be switched there is raced between its steps."""

from collections.abc import Callable, Mapping
from math import inf

from hotlap.diagnosis.conviction import WORTH_CALLING
from hotlap.diagnosis.tried import Trials, Tried, in_words
from hotlap.errors import HotlapError
from hotlap.lab.decisions import Decision
from hotlap.lab.duel import Duel, Race, can_race, seconds_to_decide
from hotlap.lab.observing import Observation
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import Technique, registry
from hotlap.trace.schema import Trace
from hotlap.trial.evidence import WORTH

SHARE = 0.4
"""Of what is left of the budget, for turns."""
_SECONDS = 15.0
"""That turns take at the most."""
_READY_SHARE = 0.4
_READY_S = 20.0
"""How long getting ready may take at the most: `resident` reads every sample."""
_AGE = 5
"""Steps between what was watched and the first turn."""
_ENOUGH_ROUNDS = 20
_FEW = 10
"""Rounds below which nothing is ruled out."""


def race_live(
    lab: Lab,
    seen: Observation,
    plans: Mapping[str, Plan],
    left_s: float,
    tell: Callable[[int], None],
) -> Trials:
    """Race the plans that can be switched in the watched process, and end it.

    Args:
        lab: holds the process.
        seen: the watched run; nothing is tried if its process has not stayed.
        plans: by name, one technique each.
        left_s: seconds that are left of the budget.
        tell: called with the number of plans that are raced, before they are, if any is.

    Returns:
        What was told; a plan that is not in it must be tried in a fresh process.
    """
    if seen.trial is None:
        return Trials({}, 0.0)
    try:
        return _race(lab, seen, plans, left_s, tell)
    except HotlapError:
        # The script ended, or cannot be divided into turns: fresh processes tell as much.
        return Trials({}, 0.0)
    finally:
        seen.trial.kill()


def _race(
    lab: Lab,
    seen: Observation,
    plans: Mapping[str, Plan],
    left_s: float,
    tell: Callable[[int], None],
) -> Trials:
    known, trace = registry(lab.techniques), seen.trace
    ready_s = min(_READY_S, _READY_SHARE * left_s)
    live = {name: plan for name, plan in plans.items() if _can_race(plan, known, trace, ready_s)}
    records = [known[name].live for plan in live.values() for name in plan.techniques]
    settle = max((record.settle for record in records if record is not None), default=0)
    step_ms, planned = trace.step_ms()["median"], trace.facts.planned_steps
    script_s = inf if planned is None else (planned - len(trace.steps)) * step_ms / 1e3
    seconds = min(_SECONDS, SHARE * left_s)
    if not live or seconds_to_decide(len(live), step_ms, settle) > min(script_s, seconds):
        return Trials({}, 0.0)
    tell(len(live))
    with Duel(
        lab,
        list(live.values()),
        step_ms=step_ms,
        steps=planned,
        settle=settle,
        age=_AGE,
        taken=len(trace.steps),
        ready_s=ready_s,
        trial=seen.trial,
    ) as duel:
        arms = [(number,) for number in range(len(live))]
        race = duel.race(arms, seconds=seconds, least_rounds=_ENOUGH_ROUNDS)
    floor = WORTH
    if race.placebo is not None:
        floor = max(WORTH, race.placebo.median - 1, 1 / race.placebo.median - 1)
    return Trials(_trials_of(race, live, floor, known), floor)


def _can_race(plan: Plan, known: Mapping[str, Technique], trace: Trace, ready_s: float) -> bool:
    techniques = [known[name] for name in plan.techniques]
    if not all(can_race(technique, trace, ready_s) for technique in techniques):
        return False
    # What worker processes read cannot be replaced from here.
    is_fed_here = all(loader.num_workers == 0 for loader in trace.facts.training_loaders)
    return is_fed_here or all(technique.seam != "feed" for technique in techniques)


def _trials_of(
    race: Race, plans: Mapping[str, Plan], floor: float, known: Mapping[str, Technique]
) -> dict[str, Tried]:
    found = {}
    for (name, plan), decision in zip(plans.items(), race.decisions, strict=True):
        ratio = decision.ratio
        if decision.state == "failed":
            found[name] = Tried(plan, None, f"{plan}: {decision.why}")
            continue
        if ratio is None or _says_little(decision):
            continue
        found[name] = Tried(
            plan,
            ratio,
            in_words(plan, ratio),
            why=decision.why or "",
            is_gain=decision.state == "faster",
            is_open=decision.state == "undecided" and ratio.high > 1 + WORTH_CALLING,
            floor=floor,
            known=known,
        )
    return found


def _says_little(decision: Decision) -> bool:
    return decision.state == "undecided" and (decision.ratio is None or decision.ratio.pairs < _FEW)
