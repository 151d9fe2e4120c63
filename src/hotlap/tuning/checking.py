"""Two plans compared, and a plan file checked: does it still apply, hold and gain?"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.errors import TrialError
from hotlap.host import probes
from hotlap.lab.arm import Arm
from hotlap.lab.observing import watch
from hotlap.lab.process_race import race
from hotlap.lab.proving import Prover
from hotlap.lab.statistics import Ratio
from hotlap.lab.trial import Lab
from hotlap.lab.turn_lengths import late_age
from hotlap.lab.verdict import TIERS, Verdict
from hotlap.plan import Plan
from hotlap.plan.file import PlanFile
from hotlap.techniques import registry
from hotlap.tuning.proofs import prove_in_effect
from hotlap.tuning.racing import TWINS
from hotlap.tuning.ranking import has_gained
from hotlap.tuning.time_plan import TURN_S

_ROUNDS = 7
_MORE_ROUNDS = 14
_WATCH_S = 10.0

Progress = Callable[[str], None]


@dataclass(frozen=True)
class PlanComparison:
    """Whether one plan learns what another one does."""

    script: str
    plans: tuple[Plan, Plan]
    verdict: Verdict
    techniques: Sequence[dict[str, str]]
    """{name, state, why} of the second plan's, as its run showed."""

    def to_json(self) -> dict[str, Any]:
        """Return what `hotlap verify --json` prints."""
        a, b = self.plans
        return {
            "script": self.script,
            "a": {"plan": a.to_json(), "plan_hash": a.hash},
            "b": {"plan": b.to_json(), "plan_hash": b.hash},
            "verdict": self.verdict.to_json(),
            "techniques": list(self.techniques),
        }


def compare(
    lab: Lab, first: Plan, second: Plan, *, steps: int, progress: Progress = lambda _: None
) -> PlanComparison:
    """Give a verdict on `second` against `first`, as if that were the plain script.

    Args:
        lab: an entered `Lab`.
        first: what is believed.
        second: what is judged.
        steps: that each run is followed for.
        progress: called with a line now and then.

    Raises:
        TrialError: the script cannot be run under `first`.
    """
    # What two processes take of a GPU is not known.
    at_once = False if probes.gpus(None) else None
    prover = Prover(lab, steps, registry(lab.techniques), base=first, at_once=at_once)
    progress(f"following {lab.subject} under the first plan for {steps} steps")
    prover.run_plain()
    progress("following it under the second plan")
    verdict, applied = prove_in_effect(prover, second, prover.known, progress)
    return PlanComparison(str(lab.subject), (first, second), verdict, applied)


@dataclass(frozen=True)
class PlanCheck:
    """What became of a plan file."""

    script: str
    plan: Plan
    promised: str
    """The tier of the file's verdict, `rounding` if it has none."""
    verdict: Verdict
    techniques: Sequence[dict[str, str]]
    speedup: Ratio | None
    """None if the plan could not be raced; then `problem` says why."""
    floor: float
    gains: bool
    problem: str = ""

    @property
    def applies(self) -> bool:
        """True if every technique of the plan took effect."""
        states = {row["name"]: row["state"] for row in self.techniques}
        return all(states.get(name) == "applied" for name in self.plan.techniques)

    @property
    def holds(self) -> bool:
        """True if the verdict is as good as the file says."""
        return TIERS.index(self.verdict.tier) <= TIERS.index(self.promised)

    def to_json(self) -> dict[str, Any]:
        """Return what `hotlap check --json` prints."""
        return {
            "script": self.script,
            "plan": self.plan.to_json(),
            "plan_hash": self.plan.hash,
            "applies": self.applies,
            "holds": self.holds,
            "gains": self.gains,
            "promised": self.promised,
            "verdict": self.verdict.to_json(),
            "speedup": self.speedup,
            "floor": self.floor,
            "problem": self.problem,
            "techniques": list(self.techniques),
        }


def check_plan(
    lab: Lab,
    file: PlanFile,
    *,
    steps: int,
    budget_s: float,
    progress: Progress = lambda _: None,
) -> PlanCheck:
    """Say whether the plan of a file still applies, holds and gains.

    Args:
        lab: an entered `Lab`.
        file: the plan file.
        steps: that each run of the proof is followed for.
        budget_s: seconds that the race may take; the proof takes what it takes.
        progress: called with a line now and then.

    Raises:
        TrialError: the plain script itself cannot be measured.
    """
    compared = compare(lab, Plan(), file.plan, steps=steps, progress=progress)
    progress("racing it against the plain run")
    speedup, floor, gains, problem = _race(lab, file, budget_s, progress)
    return PlanCheck(
        script=compared.script,
        plan=file.plan,
        promised=file.verdict.tier if file.verdict is not None else "rounding",
        verdict=compared.verdict,
        techniques=compared.techniques,
        speedup=speedup,
        floor=floor,
        gains=gains,
        problem=problem,
    )


def _race(
    lab: Lab, file: PlanFile, budget_s: float, progress: Progress
) -> tuple[Ratio | None, float, bool, str]:
    plan = file.plan
    facts = watch(lab, seconds=min(_WATCH_S, budget_s / 4), epochs=1).trace
    known = registry(lab.techniques)
    acts_late = any(known[name].acts_late for name in plan.techniques)
    arm = Arm("the plan", plan, lab, is_awaited=True)
    owns_step = lab.subject.step_owner == "engine"
    try:
        found = race(
            [*(Arm(name, Plan(), lab) for name in TWINS), arm],
            twins=TWINS,
            rounds=_ROUNDS,
            most_rounds=_MORE_ROUNDS,
            turn_s=TURN_S,
            deadline=time.monotonic() + budget_s,
            planned_steps=None if owns_step else facts.facts.planned_steps,
            step_ms=facts.step_ms()["median"],
            age=late_age(len(facts.steps)) if acts_late else 0,
            at_once=facts.facts.processes_at_once,
            one_by_one=facts.evaluates_first,
            progress=progress,
        )
    except TrialError as error:
        return None, 0.0, False, str(error).splitlines()[0]
    if arm.failed is not None or arm.name not in found.arms:
        return None, found.floor, False, arm.failed or "it took no turn"
    ratio = found.ratio(arm.name)
    claimed = file.speedup if file.is_as_measured else None
    to_confirm = {} if claimed is None else {plan: claimed.median}
    # By what `tune` has claimed it: fresh processes may be too noisy for more.
    gains = has_gained(found, arm.name, found.floor, to_confirm)
    return ratio, found.floor, gains, ""
