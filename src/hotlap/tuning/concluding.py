"""Concludes a tuning: predicts the best plan's whole run, and gives the outcome with its reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotlap.errors import HotlapError
from hotlap.lab.observing import Observation, watch
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio, Spread, figures, median_pair, spread
from hotlap.lab.verdict import TIERS, Verdict
from hotlap.lab.whole_run import (
    WholeRun,
)
from hotlap.plan import Plan
from hotlap.trace.schema import Trace
from hotlap.tuning.hints import HintAnswer, answer
from hotlap.tuning.predicting import LEAST_WATCH_S, predict_both, predict_plain
from hotlap.tuning.result import ProvenPlan, TrialRow, Tuning
from hotlap.tuning.tuner import Tuner

BASELINES_AGREE = 1.5
"""How many times the plain step of the race may take what the watched plain step took, or the other
way round. What is further apart was not measured under the same conditions."""
WORTH_CALLING = 0.05
"""A larger gain must be ruled out before "nothing to gain" is said."""
_UNCONFIRMED = "there was no time for another race, in fresh processes, to confirm it"


@dataclass(frozen=True)
class _Claim:
    """A plan as it would be claimed, and why it is not, if it is not."""

    whole: Mapping[str, WholeRun]
    techniques: Sequence[Mapping[str, str]] = ()
    """What the plan's own whole run proved of its techniques."""
    doubt: str = ""
    speedup: Ratio | None = None
    """What is claimed."""
    floor: float = 0.0
    """How far identical runs were apart where it was measured."""
    own: Trace | None = None
    """The plan's own whole run, where it was watched."""
    fresh_doubt: str = ""
    """See `Tuning`."""


def conclude(
    tuner: Tuner, seen: Observation, final: Race | None, rungs: Sequence[ProvenPlan]
) -> Tuning:
    """Return what was found.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run.
        final: the last race, None if there was none.
        rungs: what was proven in it.
    """
    seen = tuner.to_its_end(seen)
    accepted = [rung for rung in rungs if TIERS.index(rung.tier) <= TIERS.index(tuner.accept)]
    best = max(accepted, key=lambda rung: rung.worth, default=None)
    baseline = _baseline(seen, final)
    claim = _claim(tuner, seen, final, best)
    if best is not None and claim.doubt:
        tuner.notes.note_unclaimed(best.plan, claim.doubt)
        # The others were measured against the same baseline, or gain less.
        best, rungs = None, ()
    plan, verdict = Plan({}), Verdict("exact", f"{tuner.plain}, nothing is changed", 0)
    ratio, best_ms, by_means = Ratio(1.0, 1.0, 1.0, baseline.n), baseline, None
    floor, own, pair_ms, fresh_doubt = tuner.floor, None, None, ""
    whole = {"baseline": claim.whole["baseline"], "best": claim.whole["baseline"]}
    if best is not None:
        assert final is not None
        plan, verdict, whole = best.plan, best.verdict, claim.whole
        ratio, floor = claim.speedup or best.speedup, claim.floor
        name = _arm_of(final, plan)
        best_ms, by_means = final.spread(name), final.ratio_of_means(name)
        pair_ms = median_pair(final.base_ms, final.arms[name].turns_ms)
        own, fresh_doubt = claim.own, claim.fresh_doubt
        tuner.notes.note_chosen(plan, final.arms[name].techniques, claim.techniques)
    outcome, reason = _outcome(tuner, best, claim.doubt)
    return Tuning(
        script=str(tuner.lab.subject),
        plain=tuner.plain,
        outcome=outcome,
        reason=reason,
        plan=plan,
        verdict=verdict,
        speedup=ratio,
        live=best.live if best is not None else None,
        fresh=best.fresh if best is not None else None,
        fresh_doubt=fresh_doubt,
        speedup_by_means=by_means,
        baseline_ms=baseline,
        best_ms=best_ms,
        pair_ms=pair_ms,
        floor=floor,
        whole_run=whole,
        planned_steps=seen.trace.facts.planned_steps,
        proven_plans=tuple(rungs),
        trials=tuple(tuner.trials),
        techniques=tuner.notes.rows(tuner.known),
        not_tried=tuple(tuner.notes.untried),
        hints=_answers(tuner),
        not_reached=tuple(tuner.budget.not_reached),
        unprotected=tuner.lab.unprotected,
        seconds=tuner.budget.spent,
        trace=seen.trace,
        aim=tuner.aim,
        live_decides=tuner.live_decides,
        torch=_torch_of_trials(tuner),
        plain_peak_bytes=tuner.plain_peak_bytes,
        memory=tuner.memory,
        best_phases=own.steady_phases() if own is not None else None,
        best_phases_are_steady=own is not None and own.has_later_epoch,
    )


def _torch_of_trials(tuner: Tuner) -> str | None:
    # Which Python a command starts is not known before it runs.
    if getattr(tuner.lab.subject, "is_command", False):
        return None
    said = (trial.torch for trial in tuner.lab.trials)
    return next((each["version"] for each in said if each is not None), None)


def _baseline(seen: Observation, final: Race | None) -> Spread:
    if final is not None:
        return spread(final.base_ms)
    step = seen.trace.step_ms()
    return Spread(step["median"], step["low"], step["high"], int(step["n"]))


def _arm_of(final: Race, plan: Plan) -> str:
    return next(name for name, arm in final.arms.items() if arm.plan == plan)


def _claim(tuner: Tuner, seen: Observation, final: Race | None, best: ProvenPlan | None) -> _Claim:
    """Predict the whole run with and without the plan, and look for what speaks against it."""
    plain = predict_plain(tuner, seen, final)
    if best is None or final is None:
        return _Claim({"baseline": plain, "best": plain})
    doubt = _doubt_baselines(tuner, seen, spread(final.base_ms).median)
    name, speedup, floor = _arm_of(final, best.plan), best.speedup, best.floor
    # Turns in one process are closer to each other than those of processes.
    rows = [row for row in tuner.trials if row.plan == best.plan and row.race == 0]
    by_means = rows[-1].by_means if rows and tuner.live_decides else None
    if doubt:
        # What was measured in the watched process needs no race that runs as fast.
        live = tuner.live_gains().get(best.plan)
        if live is None:
            return _Claim({"baseline": plain, "best": plain}, doubt=doubt)
        speedup, floor, by_means = live, tuner.live_floor, by_means or live.median
    try:
        plain, under, own = predict_both(tuner, seen, final, name, plain, by_means)
    except HotlapError as error:
        words = f"the plan failed when it was run from its very start: {error}".splitlines()[0]
        return _Claim({"baseline": plain, "best": plain}, doubt=words)
    proofs = own.techniques if own is not None else ()
    fresh_doubt = doubt
    doubt = _is_not_what_was_raced(best, proofs)
    if tuner.aim == "run":
        doubt = doubt or saves_nothing(plain, under, figures(speedup))
    whole = {"baseline": plain, "best": under}
    seen_own = own.trace if own is not None else None
    return _Claim(whole, proofs, doubt, speedup, floor, seen_own, fresh_doubt)


def _doubt_baselines(tuner: Tuner, seen: Observation, raced_ms: float) -> str:
    """Return, in words, that a plain step took far longer in one measurement, else nothing.

    A watch is short: what disturbed the machine then may be over. Another one decides, if there is
    time for it and for the plan's own.
    """
    doubt = _baselines_differ(seen.trace.step_ms()["median"], raced_ms, tuner.plain)
    spare = tuner.budget.left - 2 * (seen.trace.setup_s + LEAST_WATCH_S) - 1.0
    if not doubt or spare < 0:
        return doubt
    tuner.progress(f"{doubt.partition(':')[0]}: watching it again")
    try:
        again = watch(tuner.lab, Plan(), seconds=LEAST_WATCH_S, steps=tuner.most_steps)
    except HotlapError as error:
        tuner.progress(f"it could not be watched again: {str(error).splitlines()[0]}")
        return doubt
    return _baselines_differ(again.trace.step_ms()["median"], raced_ms, tuner.plain)


def _baselines_differ(watched_ms: float, raced_ms: float, plain: str) -> str:
    """Return, in words, that a plain step took far longer in one measurement, else nothing.

    Args:
        watched_ms: what it took while the plain run was watched.
        raced_ms: what it took in the race.
        plain: what is meant by plain.
    """
    apart = max(watched_ms / raced_ms, raced_ms / watched_ms)
    if apart <= BASELINES_AGREE:
        return ""
    return (
        f"a step of {plain} took {watched_ms:.2f} ms while it was watched alone and "
        f"{raced_ms:.2f} ms in the race, {apart:.1f} times apart: the race did not measure what a "
        "user would see"
    )


def saves_nothing(plain: WholeRun, under: WholeRun, gain: str) -> str:
    """Return, in words, that the whole run is predicted to be no shorter, else nothing."""
    if plain.seconds is None or under.seconds is None or under.seconds < plain.seconds:
        return ""
    return (
        f"{gain} in a race, but the whole run is predicted to take {under.seconds:.1f} s and "
        f"{plain.seconds:.1f} s without the plan"
    )


def _is_not_what_was_raced(best: ProvenPlan, rows: Sequence[Mapping[str, str]]) -> str:
    for row in rows:
        if row["state"] == "refused" and row["name"] in best.plan.techniques:
            return f"{row['name']} was applied in the race and not in a whole run: {row['why']}"
    return ""


def _outcome(tuner: Tuner, best: ProvenPlan | None, doubt: str) -> tuple[str, str]:
    """Return what the tuning comes to, and why, in words."""
    if best is not None:
        return "gain", ""
    if doubt:
        return "could_not_tell", doubt
    if tuner.notes.unproven:
        return "not_proven", tuner.notes.unproven
    if tuner.notes.not_worth_it:
        return "nothing_to_gain", (
            f"{tuner.notes.not_worth_it}. Use --for steady to choose by the time of a step"
        )
    tried = _last_of_each(tuner.trials)
    open_ = [row for row in tried if row.speedup and row.speedup.high > 1 + WORTH_CALLING]
    reasons = []
    if open_:
        top = max(open_, key=lambda row: row.speedup.median if row.speedup else 0.0)
        assert top.speedup is not None
        if top.speedup.low > 1 + tuner.floor:
            was_again = sum(row.plan == top.plan for row in tuner.trials) > 1
            other = "another race did not confirm it" if was_again else _UNCONFIRMED
            means = ""
            if top.by_means is not None and top.by_means < top.speedup.low:
                # What vetoes a gain of medians.
                means = f" by the median, {top.by_means:.2f}x by the mean of all steps"
            # Where time was not what was missing, a larger budget would not do either.
            advice = f"; use {tuner.budget.option}" if tuner.budget.short_s else ""
            reasons.append(
                f"{top.plan} gave {figures(top.speedup)}{means} {_where(top)}, and {other}{advice}"
            )
        else:
            reasons.append(
                f"{top.plan} gave {figures(top.speedup)} {_where(top)}, which neither shows a gain "
                f"nor rules one out; identical runs differ by up to {tuner.floor:.1%} here"
            )
    elif tried and tuner.floor > WORTH_CALLING:
        reasons.append(f"identical runs differ by up to {tuner.floor:.1%} here")
    by_why: dict[str, list[str]] = {}
    for name, why in tuner.notes.untried.items():
        by_why.setdefault(why, []).append(name)
    reasons += [f"not tried ({why}): {', '.join(names)}" for why, names in by_why.items()]
    if reasons and tuner.host.load:
        busy, cores = tuner.host.busy_cores, tuner.host.cores
        reasons.append(
            f"other processes kept {busy:.1f} of {cores} cores busy when the tuning began: tune "
            "when the machine is quiet, where a shorter budget may do"
        )
    if reasons:
        return "could_not_tell", "; ".join(reasons)
    if not tried:
        return "nothing_to_gain", "no technique could be applied to it here"
    count = len(tried)
    return "nothing_to_gain", (
        f"{count} plan{'s' * (count != 1)} tried, and none can be more than {WORTH_CALLING:.0%} "
        f"faster than {tuner.plain}"
    )


def _where(row: TrialRow) -> str:
    return f"in race {row.race}" if row.race else "in one process"


def _last_of_each(trials: Sequence[TrialRow]) -> list[TrialRow]:
    """Return of every plan that took effect the race that it was in last."""
    last = {str(row.plan): row for row in trials if row.speedup is not None and row.took_effect}
    return list(last.values())


def _answers(tuner: Tuner) -> tuple[HintAnswer, ...]:
    found: list[HintAnswer] = []
    for hint in tuner.hints:
        if not hint.plan.techniques:
            continue
        rows = [row for row in tuner.trials if row.plan == hint.plan]
        # In one process, if it was, as a diagnosis measures it, else the last one.
        rows.sort(key=lambda row: (row.race != 0, -row.race))
        row = next((row for row in rows if row.speedup is not None), None)
        where = "" if row is None else " in fresh processes" if row.race else " in one process"
        raced = None if row is None else row.speedup
        why = _why_not_raced(tuner, hint.plan, rows)
        found.append(answer(hint, raced, why, tuner.floor, where))
    return tuple(found)


def _why_not_raced(tuner: Tuner, plan: Plan, rows: Sequence[TrialRow]) -> str:
    notes = [row.note for row in rows if row.note]
    return notes[0] if notes else tuner.unhinted.get(str(plan), "out of budget")
