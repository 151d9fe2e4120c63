"""The stages of a tuning: observe, nominate, race, combine, race again, prove, predict."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap import rules
from hotlap.errors import UsageError, unknown_name
from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation, watch
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.plan.file import is_plan_file
from hotlap.techniques import Numerics, Technique, registry
from hotlap.tuning.budget import Budget
from hotlap.tuning.candidates import Candidate, combinations, find_promising, nominate
from hotlap.tuning.concluding import conclude
from hotlap.tuning.confirming import confirm
from hotlap.tuning.continuing import (
    continued_races,
    keep_first_race,
    keep_races,
    without_decided_ones,
)
from hotlap.tuning.hints import Hint, put_first
from hotlap.tuning.kept_tunings import KeptTuning
from hotlap.tuning.late import place_late_ones, slowdown, without_late_ones
from hotlap.tuning.live_races import race_live
from hotlap.tuning.proofs import prove
from hotlap.tuning.racing import TWINS, arms_that_fit, looks_faster, race_plans, until_next
from hotlap.tuning.ranking import fastest_first
from hotlap.tuning.result import Tuning
from hotlap.tuning.technique_notes import NO_TIME_FOR_RACES
from hotlap.tuning.time_plan import LEAST_HORIZON, plan_time
from hotlap.tuning.tuner import ACCEPT, AIMS, WEAKEST, Progress, Tuner
from hotlap.tuning.whole_run_savings import savings

_OBSERVE_SHARE = 0.2
_LONG_START_S = 20.0
"""A start about which a user who waits should know."""
_MOST_PLANS = 6
_RACING_SHARE = 0.2
"""About what share of a budget the first race gets."""
_MOST_RACES = 4
_MOST_UNDECIDED = 3


def tune(
    lab: Lab,
    host: Any,
    *,
    budget_s: float,
    accept: str = "rounding",
    only: Sequence[str] | None = None,
    aim: str = "run",
    steps: int | None = None,
    hints: Sequence[Hint] = (),
    kept: KeptTuning | None = None,
    memory: int | None = None,
    progress: Progress = lambda _: None,
) -> Tuning:
    """Find the fastest plan for the lab's script or recipe whose verdict is at least `accept`.

    Args:
        lab: an entered `Lab`.
        host: the `Host` it runs on.
        budget_s: seconds that everything may take together. The script is started once and takes
            some steps whatever the budget is.
        accept: `exact`, `rounding` or `statistical`.
        only: names of the techniques that may be used, all if None.
        aim: `run` for the plan that saves most over the whole run, `steady` for the fastest steps.
        steps: that are watched, and that a proof follows, at most; None for what the budget has.
        hints: what a diagnosis measured: tried first, whatever is left of the budget.
        kept: what an earlier tuning of the same measured, to be continued and added to.
        memory: bytes that a plan may hold at once, None for any number.
        progress: called with a line now and then, which ends with the seconds left.

    Raises:
        UsageError: `accept` or a name in `only` is not known.
        TrialError: the plain script itself cannot be measured.
    """
    known = check_request(accept, only or (), lab.techniques, aim=aim, steps=steps)
    if only is not None:
        known = {name: known[name] for name in known if name in only}
    budget = Budget(budget_s)

    def say(text: str) -> None:
        progress(f"{text} ({max(0.0, budget.left):.0f} s left)")

    tuner = Tuner(lab, host, known, accept, budget, say, hints, aim=aim, most_steps=steps)
    tuner.kept, tuner.memory = kept or tuner.kept, memory
    if tuner.kept.is_begun:
        say(f"continuing the tuning of {tuner.kept.when}; to measure everything again: --again")
    found = _tune(tuner)
    tuner.kept.keep_result(found, budget_s)
    return found


def check_request(
    accept: str,
    only: Sequence[str],
    techniques: Sequence[str],
    out: Path | None = None,
    aim: str = "run",
    steps: int | None = None,
) -> dict[str, Technique]:
    """Refuse what cannot be asked for, before anything starts; return the known techniques.

    Raises:
        UsageError: a word is not known, or the plan could not be written.
    """
    if accept not in ACCEPT:
        raise UsageError(unknown_name(accept, ACCEPT, "--accept"))
    if aim not in AIMS:
        raise UsageError(unknown_name(aim, AIMS, "--for"))
    if steps is not None and steps < LEAST_HORIZON:
        raise UsageError(
            f"--steps {steps} is too few for a verdict. Expected: {LEAST_HORIZON} or more."
        )
    known = registry(techniques)
    for name in only:
        if name not in known:
            raise UsageError(unknown_name(name, known, "--only: technique"))
    if out is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):
        parent = f"the folder '{out.parent}' does not exist or is read-only"
        why = "it is a folder" if out.is_dir() else parent
        raise UsageError(
            f"the plan file '{out}' cannot be written: {why}. Use --out FILE to write the plan to "
            "a file in a folder that you can write to."
        )
    if out is not None and out.exists() and not is_plan_file(out):
        raise UsageError(
            f"'{out}', where the plan would be written, exists and is not a plan file, so it is "
            "not overwritten. Use --out FILE to write the plan to another file."
        )
    return known


def _watch(tuner: Tuner) -> Observation:
    tuner.progress(
        f"watching {tuner.plain}; its first step may take up to 60 s, whatever the budget is"
    )
    seen = watch(
        tuner.lab,
        seconds=tuner.budget.seconds * _OBSERVE_SHARE,
        epochs=1,
        steps=tuner.most_steps,
        stays=not tuner.owns_step,
    )
    tuner.kept.keep_files(seen.files)
    start_s, step_ms = seen.trace.setup_s, seen.trace.step_ms()["median"]
    tuner.progress(f"{tuner.plain} starts in {start_s:.1f} s; a step takes {step_ms:.2f} ms")
    if start_s > _LONG_START_S:
        tuner.progress(
            f"each further process takes {start_s:.0f} s to start as well; several may start at "
            "once"
        )
    return seen


def _tune(tuner: Tuner) -> Tuning:
    seen = _watch(tuner)
    facts, weakest = seen.trace.facts, WEAKEST[tuner.accept]
    if facts.ranks > 1:
        tuner.progress(f"{facts.ranks} ranks train: only exact techniques can be proven there")
        weakest = Numerics.EXACT
    candidates, refused = nominate(
        facts,
        tuner.host,
        tuner.known,
        weakest,
        rules.nominate(seen.trace),
        seen.trace.phase_means(),
        own_step=tuner.owns_step,
    )
    tuner.notes.note_inapplicable(refused)
    candidates, hinted, tuner.unhinted = put_first(
        candidates, tuner.hints, facts, tuner.host, tuner.known, weakest
    )
    first, candidates = candidates[:hinted], place_late_ones(tuner, seen, candidates)
    hinted = sum(candidate in candidates for candidate in first)
    narrow = any(c.numerics.best_verdict == "statistical" for c in candidates)
    try:
        live = continued_races(tuner, candidates)
        live = live or keep_races(tuner, race_live(tuner, seen, candidates))
    finally:
        if seen.trial is not None:
            seen.trial.kill()
    if live is not None:
        tuner.late_steps, tuner.early_gains = live.late_steps, live.early_gains
        tuner.slowdown, tuner.slowed = slowdown(tuner, live), live.slowed
        live = replace(live, rest=without_late_ones(tuner, seen, live.rest))
    else:
        candidates = without_late_ones(tuner, seen, candidates)
    finalists = list(live.finalists) if live is not None else []
    raced = finalists or [candidate.plan() for candidate in candidates]
    tuner.time_plan = plan_time(
        seen.trace,
        tuner.budget,
        narrow=narrow,
        plans=len(finalists) or None,
        reads_all=any(tuner.reads_all(plan) for plan in finalists),
        age=tuner.age_for(seen, raced),
        at_once=tuner.follows_at_once(facts),
        most_steps=tuner.most_steps,
    )
    if live is not None and live.finalists:
        tuner.live, tuner.live_floor = live.finalists, live.floor
        final = confirm(tuner, seen, live)
        rungs = prove(tuner, final, None, savings(tuner, seen, final)) if final else []
        return conclude(tuner, seen, final, rungs)
    if live is not None:
        hinted = sum(candidate in live.rest for candidate in candidates[:hinted])
        candidates = list(live.rest)
    candidates = without_decided_ones(tuner, candidates)
    first = _first_races(tuner, seen, candidates, hinted)
    final, rungs = None, []
    if first is not None:
        final, before = _later_races(tuner, seen, candidates, first)
        rungs = prove(tuner, final, before, savings(tuner, seen, final)) if final else []
    return conclude(tuner, seen, final or first, rungs)


def _first_races(
    tuner: Tuner, seen: Observation, candidates: Sequence[Candidate], hinted: int
) -> Race | None:
    """Race every candidate alone against the plain run, as many as fit at a time.

    Where none of them looks faster, the next ones are raced with what was kept for proofs.

    Returns:
        The race in which something looked faster, else the last one; None if none took place.
    """
    left, race, until = list(candidates), None, tuner.time_plan.first_until
    while left:
        count = _count(tuner, len(left), until, hinted if race is None else 0)
        if not count:
            break
        race = _first_race(tuner, seen, left[:count], until, hinted if race is None else 0)
        hinted, left = 0, left[count:]
        if any(looks_faster(race, name) for name in race.arms if name not in race.twins):
            break
        until = until_next(tuner)
        if not arms_that_fit(tuner, until):
            until = tuner.budget.deadline(0.0)
    if left:
        more_s = (len(left) + len(TWINS)) * tuner.time_plan.arm_s
        option = tuner.budget.ask(more_s / _RACING_SHARE)
        tuner.notes.note_untried(left, f"{NO_TIME_FOR_RACES}: use {option}")
    return race


def _count(tuner: Tuner, left: int, until: float, hinted: int) -> int:
    """Return how many candidates to race next."""
    # One at least, if the budget allows for it at all: it may be all that was asked for.
    least = min(1, arms_that_fit(tuner, tuner.budget.deadline(0.0)))
    return min(left, max(arms_that_fit(tuner, until), least, hinted))


def _first_race(
    tuner: Tuner, seen: Observation, candidates: Sequence[Candidate], until: float, hinted: int
) -> Race:
    plural = "s" * (len(candidates) != 1)
    tuner.progress(
        f"race 1: {len(candidates)} technique{plural} alone, in turns with {tuner.plain}"
    )
    arms = [
        Arm(candidate.name, candidate.plan(), tuner.lab, is_awaited=position < hinted)
        for position, candidate in enumerate(candidates)
    ]
    result = race_plans(tuner, seen, arms, until=until, number=1)
    tuner.floor = result.floor
    for candidate, arm in zip(candidates, arms, strict=True):
        tuner.notes.note_race(candidate, arm, result)
    keep_first_race(tuner, candidates, result)
    return result


def _later_races(
    tuner: Tuner, seen: Observation, candidates: Sequence[Candidate], first: Race
) -> tuple[Race | None, Race]:
    """Race what the first race suggests, and once more, in fresh processes, what is undecided.

    Returns:
        The last race, None if there was no second one, and the one before it: whatever is claimed
        must have won in both.
    """
    plans = _second_plans(tuner, candidates, first)
    before, final = first, None
    for number in range(2, _MOST_RACES + 1):
        fits = arms_that_fit(tuner, until_next(tuner))
        if plans and not fits:
            needed_s = (len(TWINS) + 1.1) * tuner.time_plan.arm_s + 3 * tuner.time_plan.prove_s
            option = tuner.budget.ask(needed_s - tuner.budget.left)
            tuner.budget.not_reached.append(f"another race of {', '.join(plans)}")
            tuner.notes.note_unconfirmed(plans.values(), option)
        if not plans or not fits:
            break
        plural = "s" * (len(plans) != 1)
        tuner.progress(f"race {number}: {len(plans)} plan{plural}, in turns with {tuner.plain}")
        arms = [Arm(name, plan, tuner.lab) for name, plan in plans.items()][:fits]
        before = final or first
        final = race_plans(
            tuner, seen, arms, until=until_next(tuner), number=number, floor=before.floor
        )
        tuner.floor = max(before.floor, final.floor)
        plans = _still_open(final, before, tuner.floor)
    return final, before


def _still_open(last: Race, before: Race, floor: float) -> dict[str, Plan]:
    """Return what another race may decide, by name; nothing if something has gained already."""
    if fastest_first(last, floor, before):
        return {}
    names = [name for name in last.arms if name not in last.twins and looks_faster(last, name)]
    names.sort(key=lambda name: last.ratio(name).median, reverse=True)
    return {name: last.arms[name].plan for name in names[:_MOST_UNDECIDED]}


def _second_plans(tuner: Tuner, candidates: Sequence[Candidate], first: Race) -> Mapping[str, Plan]:
    """Return the combinations that the first race suggests, by name; none if it suggests none."""
    raced = {c: first.ratio(c.name) for c in candidates if c.name in first.arms}
    effective = {c: ratio for c, ratio in raced.items() if first.took_effect(c.name)}
    gains = candidates_that_gained(effective, first)
    if not gains and not find_promising(effective):
        return {}
    return combinations(
        effective, gains, limit=max(1, min(_MOST_PLANS, arms_that_fit(tuner, until_next(tuner))))
    )


def candidates_that_gained(raced: Mapping[Candidate, Ratio], first: Race) -> list[Candidate]:
    """Return the candidates whose gain alone lies above the noise, the largest first."""
    found = [candidate for candidate in raced if first.gains(candidate.name, first.floor)]
    return sorted(found, key=lambda candidate: raced[candidate].median, reverse=True)
