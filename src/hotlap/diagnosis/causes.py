"""The diagnosis: observe, suspect, try each remedy in turns with the plain script, and rank."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hotlap.diagnosis.conviction import (
    by_cost,
    conclude,
    sampled_finding,
    still_wanted,
    suspect,
    trials_of_race,
)
from hotlap.diagnosis.findings import Diagnosis, Mistake
from hotlap.diagnosis.limits import find_limits
from hotlap.diagnosis.live_trials import SHARE, race_live
from hotlap.diagnosis.profile import ProfileRequest, take_profile
from hotlap.diagnosis.stragglers import notes_on_ranks, with_other_ranks
from hotlap.diagnosis.time_plan import ROUNDS, SHORT_TURN_S, Clock, RaceTime
from hotlap.diagnosis.tried import Trials
from hotlap.errors import TrialError
from hotlap.lab.arm import Arm
from hotlap.lab.first_steps import start_up_s
from hotlap.lab.observing import Observation, watch, watch_lines
from hotlap.lab.process_race import race
from hotlap.lab.subject import plain
from hotlap.lab.trial import Lab
from hotlap.lab.turn_lengths import LEAST_STEPS, late_age, short_epoch
from hotlap.plan import Plan
from hotlap.rules import Nomination, nominate
from hotlap.rules import registry as registry_of_rules
from hotlap.techniques import registry
from hotlap.trace.schema import Trace

INTERVENTIONS = (
    "hotlap.diagnosis.cut_batches:CUT_BATCHES",
    "hotlap.diagnosis.interventions:REPLAY",
    "hotlap.diagnosis.interventions:FREE_STEP",
    "hotlap.diagnosis.interventions_on_ranks:NO_SEARCH",
    "hotlap.diagnosis.interventions_on_ranks:FEWER_SUMS",
    "hotlap.diagnosis.interventions_on_steps:ALL_CORES",
    "hotlap.diagnosis.interventions_on_steps:NO_ANOMALY",
    "hotlap.diagnosis.interventions_on_steps:NO_GRAPH",
    "hotlap.diagnosis.interventions_on_steps:NO_UNUSED_GRADIENTS",
    "hotlap.diagnosis.interventions_on_steps:SINGLE_PRECISION",
)
_TWINS = ("plain", "plain again")
_WATCH_SHARE = 0.2
_NAMING_S = 1.0
_NAMING_SHARE = 0.1
_NOT_FATAL = ("ended_early", "timeout", "memory")
"""Reasons for which a race may fail although the script itself is sound."""


@dataclass(frozen=True)
class _Subject:
    """What the parts of one diagnosis share."""

    lab: Lab
    clock: Clock
    progress: Callable[[str], None]

    @property
    def is_recipe(self) -> bool:
        return self.lab.subject.kind == "recipe"

    @property
    def plain(self) -> str:
        return plain(self.lab.subject)

    def planned_steps(self, trace: Trace) -> int | None:
        """Return the steps that a process of a race has; a recipe is trained as long as needed."""
        engine = self.lab.subject.step_owner == "engine"
        return None if engine else trace.facts.planned_steps


def diagnose(
    lab: Lab,
    host: Any,
    *,
    budget_s: float = 60.0,
    rules: Sequence[str] = (),
    profile: ProfileRequest | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Find out why the lab's script or recipe is slow.

    A run that is too short for trials, or a budget that is, still gives what was watched: where the
    time goes, and the hottest lines.

    Args:
        lab: an entered `Lab`.
        host: the `Host` it runs on.
        budget_s: seconds that everything may take together. A start, and a step that has begun,
            are not interrupted.
        rules: rules from outside, as `module:NAME`.
        profile: what torch.profiler records besides, in a process of its own; nothing if None.
        progress: called with a line now and then.

    Raises:
        TrialError: the script crashed, hung, or never trained.
    """
    known_rules = registry_of_rules(rules)
    subject = _Subject(lab, Clock(budget_s), progress)
    seconds = budget_s * _WATCH_SHARE
    set_up_s = start_up_s(seconds, budget_s)
    progress(
        f"watching {subject.plain}: up to {seconds:.0f} s of its training, after a start that may "
        f"take up to {set_up_s:.0f} s"
    )
    naming_s = min(_NAMING_S, _NAMING_SHARE * budget_s)
    lab.techniques = (*lab.techniques, *INTERVENTIONS)
    seen = watch(
        lab,
        seconds=seconds,
        naming_s=naming_s,
        stays=lab.subject.step_owner == "script",
        start_up_s=set_up_s,
        within_s=budget_s,
        progress=progress,
    )
    try:
        trace, notes = _with_lines(subject, seen.trace)
        notes = (*notes, *trace.learning.problems)
        if trace.facts.ranks > 1:
            notes = (*notes_on_ranks(trace, seen.paces), *notes)
            trace = with_other_ranks(trace, seen.paces)
        recorded = None
        if profile is not None:
            recorded, more = take_profile(lab, profile, trace, subject.clock, progress)
            notes = (*notes, *more)
        found = nominate(trace, known_rules.values())
        costly = [each for each in found if each.kind != "mistake"]
        nominations = [each for each in costly if each.sampled_ms is None]
        switches = _switches(trace, host, registry(lab.techniques))
        known = Diagnosis(
            str(lab.subject),
            trace,
            lab.unprotected,
            is_recipe=subject.is_recipe,
            findings=by_cost(sampled_finding(each) for each in costly if each.sampled_ms),
            mistakes=tuple(_mistake(each) for each in found if each.kind == "mistake"),
            limits=find_limits(
                lab,
                host,
                trace,
                subject.clock,
                progress,
                _reserve_s(subject, trace, _plans_to_try(nominations, switches)),
            ),
            notes=notes,
            profile=recorded,
        )
        return _try(subject, seen, known, nominations, switches)
    finally:
        if seen.trial is not None:
            seen.trial.kill()


def _reserve_s(subject: _Subject, trace: Trace, plans: Mapping[str, Plan]) -> float:
    """Return the seconds that leave a race of fresh processes time, behind turns in a live one.

    0 if there is nothing to race.
    """
    planned, epoch = subject.planned_steps(trace), short_epoch(trace)
    least_s = RaceTime(trace, planned, turn_s=SHORT_TURN_S, epoch=epoch).least_s
    return least_s / (1 - SHARE) if plans else 0.0


def _mistake(nomination: Nomination) -> Mistake:
    return Mistake(
        nomination.rule, nomination.where, nomination.evidence, remedy=nomination.by_hand
    )


def _with_lines(subject: _Subject, trace: Trace) -> tuple[Trace, tuple[str, ...]]:
    """Return the trace with its lines: a run that ended before there was time is watched again."""
    run_s = sum(map(sum, trace.steps)) / 1000
    if trace.lines or subject.is_recipe:
        return trace, ()
    if subject.clock.left < trace.setup_s + min(run_s, 1.0):
        return trace, ("no lines were sampled: the budget was used up",)
    subject.progress(f"once more, for its lines: about {trace.setup_s + min(run_s, 3):.0f} s")
    try:
        lines = watch_lines(subject.lab, seconds=max(1.0, min(run_s, subject.clock.left / 4)))
    except TrialError as error:
        return trace, (f"no lines were sampled: {str(error).splitlines()[0]}",)
    return replace(trace, lines=lines), ()


def _switches(trace: Trace, host: Any, known: Mapping[str, Any]) -> list[Plan]:
    found = []
    for technique in known.values():
        if not technique.is_opportunity:
            continue
        for values in technique.candidates(trace.facts, host):
            if technique.why_not(trace.facts, host, technique.options(values)) is None:
                found.append(Plan({technique.name: dict(values)}))
    return found


def _plans_to_try(nominations: Sequence[Nomination], switches: Sequence[Plan]) -> dict[str, Plan]:
    """Return the plans by name, those first that decide most: a budget may not reach the last."""
    firsts, others = [], []
    for nomination in nominations:
        bound = () if nomination.bound is None else (nomination.bound,)
        firsts += [*nomination.remedies[:1], *bound]
        others += nomination.remedies[1:]
    return {str(plan): plan for plan in (*firsts, *others, *switches)}


def _try(
    subject: _Subject,
    seen: Observation,
    known: Diagnosis,
    nominations: Sequence[Nomination],
    switches: Sequence[Plan],
) -> Diagnosis:
    plans = _plans_to_try(nominations, switches)
    if not plans:
        why = "no trial of hotlap's can measure it"
        return _without_trials(known, nominations, why) if nominations else known
    planned = subject.planned_steps(known.trace)
    if planned is not None and planned < LEAST_STEPS:
        why = f"a run of {planned} steps is too short to be compared with another"
        return _without_trials(known, nominations, why)

    def tell(count: int) -> None:
        plural = "s" * (count > 1)
        subject.progress(f"{count} change{plural}, switched between steps of {subject.plain}")

    live = race_live(subject.lab, seen, plans, subject.clock.left, tell)
    plans = still_wanted(plans, nominations, live)
    if not plans:
        return conclude(known, nominations, switches, live)
    needs, usual = _needs(subject, known.trace, planned, plans)
    fits = needs.arms_that_fit(len(usual), subject.clock.left)
    if not fits:
        total = subject.clock.seconds - subject.clock.left + needs.least_s
        why = f"the rest of the budget is too short: use --budget {math.ceil(total)}s or more"
        return _with_live_only(known, nominations, switches, live, plans, why)
    tried = dict(list(usual.items())[:fits])
    if len(tried) < len(plans):
        missing = ", ".join(name for name in plans if name not in tried)
        words = f"not tried within the budget: {missing}"
        known = replace(known, notes=(*known.notes, words))
    try:
        trials = _race(subject, known.trace, tried, needs)
    except TrialError as error:
        if error.reason not in _NOT_FATAL:
            raise
        why = str(error).splitlines()[0]
        return _with_live_only(known, nominations, switches, live, plans, why)
    return conclude(known, nominations, switches, trials.with_more(live))


def _with_live_only(
    known: Diagnosis,
    nominations: Sequence[Nomination],
    switches: Sequence[Plan],
    live: Trials,
    missing: Mapping[str, Plan],
    why: str,
) -> Diagnosis:
    """Return what turns in one process say, where fresh processes say nothing."""
    if not live.tried:
        return _without_trials(known, nominations, why)
    words = f"not tried: {', '.join(missing)}: {why}"
    return conclude(replace(known, notes=(*known.notes, words)), nominations, switches, live)


def _needs(
    subject: _Subject, trace: Trace, planned: int | None, plans: Mapping[str, Plan]
) -> tuple[RaceTime, Mapping[str, Plan]]:
    """Return what races take, and the plans without those that act late if that takes too long."""
    known = registry(subject.lab.techniques)
    late = {n for n, plan in plans.items() if any(known[t].acts_late for t in plan.techniques)}
    epoch = short_epoch(trace)
    needs = RaceTime(trace, planned, late_age(len(trace.steps)) if late else 0, epoch=epoch)
    usual = {name: plan for name, plan in plans.items() if name not in late}
    if not usual or needs.arms_that_fit(len(plans), subject.clock.left) == len(plans):
        return needs, plans
    needs = RaceTime(trace, planned, epoch=epoch)
    whole = [] if epoch is None else [replace(needs, turn_s=SHORT_TURN_S)]
    shorter = [*whole, RaceTime(trace, planned), RaceTime(trace, planned, turn_s=SHORT_TURN_S)]
    while shorter and not needs.arms_that_fit(len(usual), subject.clock.left):
        needs = shorter.pop(0)
    return needs, usual


def _race(subject: _Subject, trace: Trace, plans: Mapping[str, Plan], needs: RaceTime) -> Trials:
    seconds = min(needs.seconds(len(plans)), max(needs.least_s, subject.clock.left))
    many = f"{len(plans)} change{'s' * (len(plans) != 1)}"
    subject.progress(f"{many}, in turns with {subject.plain}: about {seconds:.0f} s")
    arms = [Arm(name, plan, subject.lab) for name, plan in plans.items()]
    twins = [Arm(name, Plan({}), subject.lab) for name in _TWINS]
    result = race(
        [twins[0], *arms, twins[1]],
        twins=_TWINS,
        rounds=ROUNDS,
        turn_s=needs.turn_s,
        deadline=subject.clock.deadline,
        planned_steps=needs.planned_steps,
        step_ms=needs.step_ms,
        age=needs.age,
        epoch=needs.epoch,
        at_once=trace.facts.processes_at_once,
        one_by_one=trace.evaluates_first,
        progress=subject.progress,
    )
    return trials_of_race(result, arms, registry(subject.lab.techniques))


def _without_trials(known: Diagnosis, nominations: Sequence[Nomination], why: str) -> Diagnosis:
    """Return what is known where nothing could be raced."""
    suspects = tuple(suspect(nomination, why) for nomination in nominations)
    return replace(known, suspects=suspects, notes=(*known.notes, f"no cost was measured: {why}"))
