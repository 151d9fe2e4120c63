"""Proves the plans that gained, the best of each tier first."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hotlap.errors import HotlapError
from hotlap.lab.process_race import Race
from hotlap.lab.proving import Prover
from hotlap.lab.statistics import figures
from hotlap.lab.verdict import TIERS, Verdict
from hotlap.plan import Plan
from hotlap.techniques import Technique, numerics_of
from hotlap.tuning.ranking import fastest_first
from hotlap.tuning.result import ProvenPlan
from hotlap.tuning.time_plan import PROOF_RUNS, RECIPE_PROOF_RUNS
from hotlap.tuning.tuner import ACCEPT, Tuner
from hotlap.tuning.whole_run_savings import Saving, most_saving_first

_ENOUGH_STEPS = 0.5
"""The share of the steps that would be followed now which an earlier proof must have followed."""
_LATE_SHARE = 0.1
"""Of the budget: as much later may the first proof end, without which all else was for nothing."""


def prove(
    tuner: Tuner,
    final: Race,
    before: Race | None = None,
    saved: Mapping[str, Saving] | None = None,
) -> list[ProvenPlan]:
    """Give verdicts to the best plan of each tier, and to the next one where it fails.

    Args:
        tuner: what the tuning shares.
        final: the last race.
        before: the race before it, if there was one.
        saved: what each arm saves over the whole run; None to choose by steps alone.
    """
    names = fastest_first(final, tuner.floor, before, tuner.gains_to_confirm())
    if saved is not None:
        for name in names:
            if saved[name].seconds <= 0:
                gain = figures(final.ratio(name))
                tuner.notes.note_not_worth_it(
                    final.arms[name].plan, f"{name} gave {gain} a step; {saved[name]}"
                )
        names = most_saving_first(names, saved)
    if not names:
        return []
    runs = PROOF_RUNS if tuner.time_plan.at_once else RECIPE_PROOF_RUNS
    late_s = _LATE_SHARE * tuner.budget.seconds
    first = numerics_of(final.arms[names[0]].plan, tuner.known).best_verdict
    narrow_s = tuner.time_plan.prove_narrow_s - tuner.time_plan.prove_s
    late_s -= narrow_s if first == "statistical" else 0.0
    if tuner.budget.left + late_s < runs * tuner.time_plan.prove_s:
        # A shorter proof says more than none.
        fills = tuner.reads_all(final.arms[names[0]].plan)
        shorter = tuner.time_plan.shorten((tuner.budget.left + late_s) / runs, fills=fills)
        tuner.time_plan = shorter or tuner.time_plan
    horizon = tuner.time_plan.horizon
    needed_s = runs * tuner.time_plan.prove_s - late_s
    if _find_known(tuner, final.arms[names[0]].plan) is None and not tuner.budget.affords(
        f"the proof of {names[0]}", needed_s
    ):
        tuner.notes.unproven = _no_time(tuner, names[0], final)
        return []
    prover = Prover(
        tuner.lab,
        horizon,
        tuner.known,
        fill_ahead=tuner.time_plan.fill_ahead,
        at_once=tuner.time_plan.at_once,
        late=tuner.late_steps,
    )
    rungs: list[ProvenPlan] = []
    for tier in _fastest_tier_first(tuner, final, names):
        rung = prove_tier(tuner, prover, final, names, tier, rungs, saved)
        if rung is not None:
            rungs.append(rung)
    return sorted(rungs, key=lambda rung: TIERS.index(rung.tier))


def _find_known(tuner: Tuner, plan: Plan) -> Verdict | None:
    """Return the verdict of an earlier tuning, None if there is none over about as many steps."""
    known = tuner.kept.verdicts.get(plan)
    if known is None or known.horizon_steps < _ENOUGH_STEPS * tuner.time_plan.horizon:
        return None
    return known


def _verdict(tuner: Tuner, prover: Prover, name: str, plan: Plan) -> Verdict:
    if not prover.has_plain:
        # A proof that has seen no evaluation goes on to the next one, if that is near.
        steps = f"{prover.horizon} steps, or up to the next evaluation"
        tuner.progress(f"proving over {steps}: {tuner.plain}")
        prover.run_plain()
    tuner.progress(f"proving {name}")
    more_s = tuner.time_plan.prove_s + tuner.time_plan.fill_s

    def has_time() -> bool:
        return tuner.budget.affords(f"another proof of {name}, with its samples in memory", more_s)

    try:
        verdict, applied = prove_in_effect(prover, plan, tuner.known, tuner.progress, has_time)
    except HotlapError as error:
        # Without a plain run nothing can be proven of any plan.
        prover.wait_for_plain()
        return Verdict("unproven", str(error).splitlines()[0], 0)
    verdict = without_idle(verdict, plan, applied)
    tuner.kept.keep_verdict(plan, verdict)
    return verdict


def prove_in_effect(
    prover: Prover,
    plan: Plan,
    known: Mapping[str, Technique],
    progress: Callable[[str], None],
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[Verdict, list[dict[str, str]]]:
    """Prove a plan, once more with its samples in memory where the steps were too few to get there.

    Args:
        prover: gives the verdict.
        plan: what is proven.
        known: the techniques by name.
        progress: called with a line where it is proven once more.
        has_time: True if there is time for another proof.

    Returns:
        The verdict, and {name, state, why} of the techniques in the run that it is on: the first
        one where the other failed.
    """
    verdict, applied = prover.prove(plan), prover.applied
    idle = [
        row
        for row in _idle(plan, applied)
        if row["state"] == "no_effect" and known[row["name"]].memory.keeps_dataset
    ]
    is_open = idle and not prover.fill_ahead and verdict.tier not in ("changed", "unproven")
    if not is_open or not has_time():
        return verdict, applied
    progress(f"once more, with its samples in memory: {_in_words(idle)}")
    try:
        return prover.prove_ahead(plan), prover.applied
    except HotlapError as error:
        # It takes more memory and time than the first: what that one has shown is kept.
        progress(f"with its samples in memory it failed: {str(error).splitlines()[0]}")
        return verdict, applied


def without_idle(verdict: Verdict, plan: Plan, applied: Sequence[Mapping[str, str]]) -> Verdict:
    """Return the verdict, `unproven` if a technique had no effect: of that nothing is proven.

    Args:
        verdict: on a run under the plan.
        plan: the plan.
        applied: {name, state, why} of the techniques in that run.
    """
    idle = _idle(plan, applied)
    if not idle or verdict.tier in ("changed", "unproven"):
        return verdict
    words = f"not in effect in the {verdict.horizon_steps} steps of the proof: {_in_words(idle)}"
    return replace(verdict, tier="unproven", evidence=words)


def _idle(plan: Plan, applied: Sequence[Mapping[str, str]]) -> list[Mapping[str, str]]:
    return [row for row in applied if row["name"] in plan.techniques and row["state"] != "applied"]


def _in_words(rows: Sequence[Mapping[str, str]]) -> str:
    return "; ".join(f"{row['name']}: {row['why']}" for row in rows)


def _fastest_tier_first(tuner: Tuner, final: Race, names: Sequence[str]) -> list[str]:
    """Return the tiers that may be accepted, that of the fastest plan first.

    There may be no time for another one.
    """
    tiers = list(ACCEPT[: ACCEPT.index(tuner.accept) + 1])
    claimed = [numerics_of(final.arms[name].plan, tuner.known).best_verdict for name in names]
    fastest = next((tier for tier in claimed if tier in tiers), tiers[0])
    return [fastest, *(tier for tier in tiers if tier != fastest)]


def _no_time(tuner: Tuner, name: str, final: Race) -> str:
    return (
        f"{name} gave {figures(final.ratio(name))}, and no time was left to prove it: use "
        f"{tuner.budget.option}"
    )


def prove_tier(
    tuner: Tuner,
    prover: Prover,
    final: Race,
    names: Sequence[str],
    tier: str,
    rungs: Sequence[ProvenPlan],
    saved: Mapping[str, Saving] | None = None,
) -> ProvenPlan | None:
    """Return the fastest plan whose verdict is `tier` or better, None if there is none.

    Args:
        tuner: what the tuning shares.
        prover: gives the verdicts.
        final: the last race.
        names: the arms that gained, the fastest first.
        tier: plans that claim less, or more, have a turn of their own.
        rungs: what was proven before; a plan that is slower than one of as good a tier is worth no
            proof.
        saved: see `prove`.
    """
    for name in names:
        plan = final.arms[name].plan
        claimed = numerics_of(plan, tuner.known)
        if not plan.techniques or claimed.best_verdict != tier:
            continue
        as_good = [rung for rung in rungs if TIERS.index(rung.tier) <= TIERS.index(tier)]
        worth = final.ratio(name).median if saved is None else saved[name].seconds
        if worth <= max((rung.worth for rung in as_good), default=0.0):
            return None
        is_narrow = tier == "statistical"
        needed_s = tuner.time_plan.prove_narrow_s if is_narrow else tuner.time_plan.prove_s
        known = _find_known(tuner, plan)
        if known is None and not tuner.budget.affords(f"a verdict on {name}", needed_s):
            tuner.notes.unproven = _no_time(tuner, name, final)
            return None
        verdict = known or _verdict(tuner, prover, name, plan)
        # An exact claim may be proven as `rounding` only: of a script that does not repeat itself.
        if TIERS.index(verdict.tier) <= max(TIERS.index(tier), TIERS.index(tuner.accept)):
            fresh, live = final.ratio(name), tuner.live.get(plan)
            # Fresh processes confirm a live gain that they are too noisy to measure.
            speedup, floor = fresh, tuner.floor
            if live is not None and not final.gains(name, tuner.floor):
                speedup, floor = live, tuner.live_floor
            return ProvenPlan(verdict.tier, plan, speedup, verdict, live, fresh, worth, floor)
        tuner.notes.note_failed_proof(plan, name, verdict.tier, verdict.evidence)
    return None
