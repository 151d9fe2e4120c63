"""The tuning itself: observe, nominate, race, combine, race again, prove, predict."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap import rules
from hotlap.errors import HotlapError, UsageError, unknown_name
from hotlap.lab.observing import Observation, WholeRun, predict_whole_run, watch
from hotlap.lab.pairs import Arm, Race, race
from hotlap.lab.proving import Prover
from hotlap.lab.recipes import RecipeRun
from hotlap.lab.statistics import Ratio, Spread, is_gain, spread
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import TIERS, Verdict
from hotlap.plan import Plan
from hotlap.plan.file import is_plan_file
from hotlap.techniques import Numerics, Technique, numerics_of, registry
from hotlap.tuning.budget import Budget
from hotlap.tuning.candidates import Candidate, combinations, nominate, promising
from hotlap.tuning.ranking import fastest_first
from hotlap.tuning.result import Rung, TrialRow, Tuning
from hotlap.tuning.schedule import TURN_S, Schedule, schedule

ACCEPT = ("exact", "rounding", "statistical")
_WEAKEST = {
    "exact": Numerics.EXACT,
    "rounding": Numerics.ROUNDING,
    "statistical": Numerics.STREAM,
}
_TWINS = ("plain", "plain again", "plain once more")
_OBSERVE_SHARE = 0.2
_MOST_PLANS = 6
_LEAST_WATCH_S = 3.0
_RACING_SHARE = 0.2
"""About what share of a budget the first race gets."""


Progress = Callable[[str], None]


@dataclass
class _Tuner:
    """What the parts of one tuning share."""

    lab: Lab
    host: Any
    known: Mapping[str, Technique]
    accept: str
    budget: Budget
    progress: Progress
    trials: list[TrialRow] = field(default_factory=list)
    states: dict[str, dict[str, str]] = field(default_factory=dict)
    floor: float = 0.0
    schedule: Schedule = field(init=False)

    @property
    def is_recipe(self) -> bool:
        return isinstance(self.lab.script, RecipeRun)

    @property
    def plain(self) -> str:
        return "the plain recipe" if self.is_recipe else "the plain script"


def tune(
    lab: Lab,
    host: Any,
    *,
    budget_s: float,
    accept: str = "rounding",
    only: Sequence[str] | None = None,
    progress: Progress = lambda _: None,
) -> Tuning:
    """Find the fastest plan for the lab's script or recipe whose verdict is at least `accept`.

    Args:
        lab: an entered `Lab`.
        host: the `Host` it runs on.
        budget_s: seconds that everything may take together.
        accept: `exact`, `rounding` or `statistical`.
        only: names of the techniques that may be used, all if None.
        progress: called with a line now and then.

    Raises:
        UsageError: `accept` or a name in `only` is not known.
        TrialError: the plain script itself cannot be measured.
    """
    known = check_request(accept, only or (), lab.techniques)
    if only is not None:
        known = {name: known[name] for name in known if name in only}
    tuner = _Tuner(lab, host, known, accept, Budget(budget_s), progress)
    return _tune(tuner)


def check_request(
    accept: str, only: Sequence[str], techniques: Sequence[str], out: Path | None = None
) -> dict[str, Technique]:
    """Refuse what cannot be asked for, before anything starts; return the known techniques.

    Raises:
        UsageError: a word is not known, or the plan could not be written.
    """
    if accept not in ACCEPT:
        raise UsageError(unknown_name(accept, ACCEPT, "--accept"))
    known = registry(techniques)
    for name in only:
        if name not in known:
            raise UsageError(unknown_name(name, known, "technique"))
    if out is not None and (out.is_dir() or not os.access(out.parent, os.W_OK)):
        raise UsageError(
            f"the plan cannot be written to '{out}': it is a folder, or its own is "
            "not there or not writable. Allowed: --out FILE in a folder that is."
        )
    if out is not None and out.exists() and not is_plan_file(out):
        raise UsageError(
            f"'{out}' is there, and is no plan file: it would be lost. Allowed: a new file, or a "
            "plan file that may be replaced."
        )
    return known


def _tune(tuner: _Tuner) -> Tuning:
    budget = tuner.budget
    tuner.progress(f"watching {tuner.plain}")
    seen = watch(tuner.lab, seconds=budget.seconds * _OBSERVE_SHARE, epochs=1)
    candidates, refused = nominate(
        seen.trace.facts,
        tuner.host,
        tuner.known,
        _WEAKEST[tuner.accept],
        rules.nominate(seen.trace),
        seen.trace.phase_means(),
        own_step=tuner.is_recipe,
    )
    for name, reason in refused.items():
        tuner.states[name] = {"name": name, "state": "refused", "why": reason}
    narrow = any(c.numerics.best_verdict == "statistical" for c in candidates)
    tuner.schedule = schedule(seen.trace, budget, narrow=narrow)
    first = _first_race(tuner, seen, candidates)
    second = _second_race(tuner, seen, candidates, first) if first else None
    rungs = _prove(tuner, second) if second else []
    return _conclude(tuner, seen, first, second, rungs)


def _first_race(tuner: _Tuner, seen: Observation, candidates: Sequence[Candidate]) -> Race | None:
    """Race every candidate alone against the plain run."""
    if not candidates:
        return None
    tuner.progress(f"{len(candidates)} techniques alone, in turns with {tuner.plain}")
    affordable = _arms_that_fit(tuner, len(candidates), tuner.schedule.first_until)
    missing = len(candidates) - affordable
    for left_out in candidates[affordable:]:
        tuner.budget.not_reached.append(
            f"{left_out.name} alone: the budget is too short, by some "
            f"{missing * tuner.schedule.arm_s / _RACING_SHARE:.0f} s for all that are missing"
        )
    arms = [Arm(candidate.name, candidate.plan(), tuner.lab) for candidate in candidates]
    until = tuner.schedule.first_until
    result = _race(tuner, seen, arms[:affordable], rounds=7, until=until, number=1)
    for candidate in candidates:
        arm = next(arm for arm in arms if arm.name == candidate.name)
        _note_state(tuner, candidate, arm, result)
    return result


def _arms_that_fit(tuner: _Tuner, wanted: int, until: float) -> int:
    """Return how many arms beside the twins can start and take some turns until then."""
    fits = int((until - time.monotonic()) / tuner.schedule.arm_s) - len(_TWINS)
    return max(1, min(wanted, fits))


def _race(
    tuner: _Tuner,
    seen: Observation,
    arms: Sequence[Arm],
    *,
    rounds: int,
    until: float,
    number: int,
) -> Race:
    plain = [Arm(name, Plan({}), tuner.lab) for name in _TWINS]
    # The twins stand between the others, not beside each other: neighbours are alike.
    mixed = _spread_out(plain, list(arms))
    result = race(
        mixed,
        twins=_TWINS,
        rounds=rounds,
        turn_s=TURN_S,
        deadline=until,
        # A recipe is trained for as long as there are turns.
        planned_steps=None if tuner.is_recipe else seen.trace.facts.planned_steps,
        step_ms=seen.trace.step_ms()["median"],
        progress=tuner.progress,
    )
    tuner.floor = max(tuner.floor, result.floor) if number > 1 else result.floor
    for arm in arms:
        done = arm.name in result.arms
        tuner.trials.append(
            TrialRow(
                arm.plan,
                number,
                result.ratio(arm.name) if done else None,
                result.spread(arm.name) if done else None,
                arm.failed or "",
            )
        )
    return result


def _spread_out(plain: list[Arm], others: list[Arm]) -> list[Arm]:
    mixed = list(others)
    gap = max(1, (len(others) + len(plain) - 1) // max(1, len(plain) - 1))
    for position, twin in enumerate(plain):
        mixed.insert(min(len(mixed), position * gap), twin)
    return mixed


def _note_state(tuner: _Tuner, candidate: Candidate, arm: Arm, result: Race) -> None:
    name = candidate.technique
    proof = next((row for row in arm.techniques if row["name"] == name), None)
    if arm.failed is not None:
        state = "no_effect" if arm.is_slow else "refused"
        row = {"name": name, "state": state, "why": f"{candidate.name}: {arm.failed}"}
    elif arm.name not in result.arms or proof is None:
        row = {"name": name, "state": "no_effect", "why": "not tried: out of budget"}
    elif proof["state"] != "applied":
        row = dict(proof)
    else:
        ratio = result.ratio(arm.name)
        words = f"{candidate.name} alone: {ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
        if not is_gain(ratio, result.floor):
            words += f", not above what identical runs differ by ({result.floor:.1%})"
        row = {"name": name, "state": "no_effect", "why": words}
    known = tuner.states.get(name)
    # Of two options of one technique the better-looking one speaks, here the first that worked.
    if known is None or known["state"] == "refused":
        tuner.states[name] = row


def _second_race(
    tuner: _Tuner, seen: Observation, candidates: Sequence[Candidate], first: Race
) -> Race | None:
    """Race the combinations that the first race suggests."""
    raced = {c: first.ratio(c.name) for c in candidates if c.name in first.arms}
    effective = {
        c: ratio
        for c, ratio in raced.items()
        if all(row["state"] == "applied" for row in first.arms[c.name].techniques)
    }
    gains = sorted(
        (c for c, ratio in effective.items() if is_gain(ratio, first.floor)),
        key=lambda c: effective[c].median,
        reverse=True,
    )
    # Several small gains may be one that can be told from noise; a single one may not.
    if not gains and len({c.technique for c in promising(effective)}) < 2:
        return None
    until = tuner.schedule.second_until
    fits = _arms_that_fit(tuner, _MOST_PLANS, until)
    plans = combinations(effective, gains, limit=fits)
    tuner.progress(f"{len(plans)} plans, in turns with {tuner.plain}")
    arms = [Arm(name, plan, tuner.lab) for name, plan in plans.items()]
    return _race(tuner, seen, arms, rounds=12, until=until, number=2)


def _prove(tuner: _Tuner, final: Race) -> list[Rung]:
    """Give verdicts to the fastest plan of each tier, and to the next one where it fails."""
    horizon = tuner.schedule.horizon
    prover = Prover(tuner.lab, horizon, tuner.known, fill_ahead=tuner.schedule.fill_ahead)
    tuner.progress(f"proving over {horizon} steps: {tuner.plain}, twice")
    prover.run_plain()
    rungs: list[Rung] = []
    for tier in ("exact", "rounding", "statistical"):
        if TIERS.index(tier) > TIERS.index(tuner.accept):
            break
        rung = _prove_tier(tuner, prover, final, tier, rungs)
        if rung is not None:
            rungs.append(rung)
    return rungs


def _prove_tier(
    tuner: _Tuner, prover: Prover, final: Race, tier: str, rungs: Sequence[Rung]
) -> Rung | None:
    for name in fastest_first(final, tuner.floor):
        plan = final.arms[name].plan
        claimed = numerics_of(plan, tuner.known)
        if not plan.techniques or claimed.best_verdict != tier:
            continue
        best = max((rung.speedup.median for rung in rungs), default=0.0)
        if final.ratio(name).median <= best:
            return None
        is_narrow = tier == "statistical"
        needed_s = tuner.schedule.prove_narrow_s if is_narrow else tuner.schedule.prove_s
        if not tuner.budget.affords(f"a verdict on {name}", needed_s):
            return None
        tuner.progress(f"proving {name}")
        try:
            verdict = prover.prove(plan)
        except HotlapError as error:
            verdict = Verdict("unproven", str(error).splitlines()[0], 0)
        if TIERS.index(verdict.tier) <= TIERS.index(tier):
            return Rung(verdict.tier, plan, final.ratio(name), verdict)
        for technique in plan.techniques:
            tuner.states[technique] = {
                "name": technique,
                "state": "refused",
                "why": f"verdict `{verdict.tier}` on {name}: {verdict.evidence}",
            }
    return None


def _conclude(
    tuner: _Tuner,
    seen: Observation,
    first: Race | None,
    second: Race | None,
    rungs: Sequence[Rung],
) -> Tuning:
    final = second or first
    accepted = [rung for rung in rungs if TIERS.index(rung.tier) <= TIERS.index(tuner.accept)]
    best = max(accepted, key=lambda rung: rung.speedup.median, default=None)
    baseline = _baseline(seen, final)
    planned = seen.trace.facts.planned_steps
    raced_ms = None if final is None else baseline.median
    whole = {"baseline": predict_whole_run(seen.trace, planned, raced_ms)}
    if best is None:
        plan, verdict = Plan({}), Verdict("exact", f"{tuner.plain}, nothing is changed", 0)
        ratio, best_ms = Ratio(1.0, 1.0, 1.0, baseline.n), baseline
        whole["best"] = whole["baseline"]
    else:
        assert final is not None
        plan, verdict, ratio = best.plan, best.verdict, best.speedup
        best_ms = next(final.spread(n) for n, arm in final.arms.items() if arm.plan == plan)
        whole["best"] = _whole_run_under(tuner, seen, best, whole["baseline"], best_ms.median)
    return Tuning(
        script=str(tuner.lab.script),
        plain=tuner.plain,
        plan=plan,
        verdict=verdict,
        speedup=ratio,
        baseline_ms=baseline,
        best_ms=best_ms,
        floor=tuner.floor,
        whole_run=whole,
        planned_steps=planned,
        ladder=tuple(rungs),
        trials=tuple(tuner.trials),
        techniques=tuple(tuner.states[name] for name in tuner.known if name in tuner.states),
        not_reached=tuple(tuner.budget.not_reached),
        unprotected=tuner.lab.unprotected,
        seconds=tuner.budget.spent,
        trace=seen.trace,
    )


def _baseline(seen: Observation, final: Race | None) -> Spread:
    if final is not None:
        return spread(final.base_ms)
    step = seen.trace.step_ms()
    return Spread(step["median"], step["low"], step["high"], int(step["n"]))


def _whole_run_under(
    tuner: _Tuner, seen: Observation, best: Rung, plain: WholeRun, steady_ms: float
) -> WholeRun:
    """Run the plan as a user would, from its very start, and predict from that."""
    spare = max(0.0, tuner.budget.left - 1.0)
    if spare < seen.trace.setup_s + _LEAST_WATCH_S:
        tuner.budget.not_reached.append("the plan's own whole run, watched from its start")
        if plain.seconds is None:
            return plain
        return WholeRun(
            plain.seconds / best.speedup.median, "the plain run's, divided by the speed-up"
        )
    tuner.progress("watching the plan from its very start")
    own = watch(tuner.lab, best.plan, seconds=spare - seen.trace.setup_s - 0.5, epochs=2)
    for row in own.techniques:
        tuner.states[row["name"]] = dict(row)
    return predict_whole_run(own.trace, seen.trace.facts.planned_steps, steady_ms)
