"""The diagnosis: watch, nominate, try each remedy in turns with the plain script, and rank."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hotlap.lab.observing import watch
from hotlap.lab.pairs import Arm, Race, race
from hotlap.lab.statistics import Ratio, is_gain
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.rules import Nomination, nominate
from hotlap.techniques import numerics_of, registry
from hotlap.trace.schema import Trace

INTERVENTIONS = ("hotlap.diagnose.interventions:REPLAY",)
OPPORTUNITIES = ("threads", "channels_last")
"""Techniques that change the whole process or model, and blame no line of the script."""
_TWINS = ("plain", "plain again")
_TURN_S = 0.4
_ROUNDS = 10
_WATCH_SHARE = 0.35
_NAMING_S = 1.0


@dataclass(frozen=True)
class Finding:
    """One cause, convicted: trying the remedy took this much off a step."""

    rule: str
    kind: str
    cost_ms: float
    at_most_ms: float
    where: str
    evidence: str
    remedy: str
    plan: Mapping[str, Any]
    numerics: str
    confidence: str


@dataclass(frozen=True)
class Opportunity:
    """A switch that is nobody's fault."""

    technique: str
    options: Mapping[str, Any]
    saves_ms: float
    low: float
    high: float
    numerics: str


@dataclass(frozen=True)
class Diagnosis:
    """Why a script is slow."""

    script: str
    trace: Trace
    findings: tuple[Finding, ...]
    opportunities: tuple[Opportunity, ...]
    acquitted: tuple[str, ...]
    """What was nominated and cost nothing that could be told from noise, in words."""
    floor: float
    unprotected: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON that `hotlap diagnose --json` prints."""
        trace = self.trace
        return {
            "script": self.script,
            "step_ms": trace.step_ms(),
            "phases": trace.phase_means(),
            "findings": [asdict(finding) for finding in self.findings],
            "opportunities": [asdict(opportunity) for opportunity in self.opportunities],
            "mistakes": [],
            "anchor": asdict(trace.anchor),
            "acquitted": list(self.acquitted),
            "noise_floor": self.floor,
            "covers_whole_epochs": trace.covers_whole_periods,
            "planned_steps": trace.facts.planned_steps,
            "unprotected": list(self.unprotected),
            "notes": list(self.notes),
        }


def diagnose(
    lab: Lab,
    host: Any,
    *,
    budget_s: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Find out why the lab's script is slow.

    Args:
        lab: an entered `Lab`.
        host: the `Host` it runs on.
        budget_s: seconds that the measurements may take; starting the script comes on top.
        progress: called with a line now and then.

    Raises:
        TrialError: the script crashed, hung, or never trained.
    """
    progress("watching the plain script")
    seen = watch(lab, seconds=budget_s * _WATCH_SHARE, epochs=1, naming_s=_NAMING_S)
    trace = seen.trace
    nominations = nominate(trace)
    lab.techniques = (*lab.techniques, *INTERVENTIONS)
    known = registry(lab.techniques)
    switches = _switches(trace, host, known)
    plans = _plans_to_try(nominations, switches)
    if not plans:
        return Diagnosis(str(lab.script), trace, (), (), (), 0.0, lab.unprotected)
    progress(f"{len(plans)} changes, in turns with the plain script")
    arms = [Arm(name, plan, lab) for name, plan in plans.items()]
    twins = [Arm(name, Plan({}), lab) for name in _TWINS]
    result = race(
        [twins[0], *arms, twins[1]],
        twins=_TWINS,
        rounds=_ROUNDS,
        turn_s=_TURN_S,
        planned_steps=trace.facts.planned_steps,
        step_ms=trace.step_ms()["median"],
        progress=progress,
    )
    return _conclude(lab, trace, nominations, switches, result)


def _switches(trace: Trace, host: Any, known: Mapping[str, Any]) -> list[Plan]:
    found = []
    for name in OPPORTUNITIES:
        technique = known[name]
        for values in technique.candidates(trace.facts, host):
            if technique.why_not(trace.facts, host, technique.options(values)) is None:
                found.append(Plan({name: dict(values)}))
    return found


def _plans_to_try(nominations: Sequence[Nomination], switches: Sequence[Plan]) -> dict[str, Plan]:
    plans: dict[str, Plan] = {}
    for nomination in nominations:
        bound = () if nomination.bound is None else (nomination.bound,)
        for plan in (*nomination.remedies, *bound):
            plans[str(plan)] = plan
    for plan in switches:
        plans[str(plan)] = plan
    return plans


def _conclude(
    lab: Lab,
    trace: Trace,
    nominations: Sequence[Nomination],
    switches: Sequence[Plan],
    result: Race,
) -> Diagnosis:
    findings, acquitted = [], []
    for nomination in nominations:
        finding, words = _convict(nomination, trace, result)
        if finding is not None:
            findings.append(finding)
        else:
            acquitted.append(f"{nomination.rule} at {nomination.where}: {words}")
    mean = trace.step_ms()["mean"]
    opportunities = []
    for plan in switches:
        ratio = _ratio(result, plan)
        if ratio is None or not is_gain(ratio, result.floor):
            continue
        ((name, options),) = plan.techniques.items()
        opportunities.append(
            Opportunity(
                technique=name,
                options=options,
                saves_ms=_saved(mean, ratio.median),
                low=_saved(mean, ratio.low),
                high=_saved(mean, ratio.high),
                numerics=numerics_of(plan).value,
            )
        )
    return Diagnosis(
        script=str(lab.script),
        trace=trace,
        findings=tuple(sorted(findings, key=lambda finding: -finding.cost_ms)),
        opportunities=tuple(sorted(opportunities, key=lambda row: -row.saves_ms)),
        acquitted=tuple(acquitted),
        floor=result.floor,
        unprotected=lab.unprotected,
    )


def _ratio(result: Race, plan: Plan) -> Ratio | None:
    """Return how many times faster the plan was, None if it failed or took no effect."""
    arm = result.arms.get(str(plan))
    if arm is None or any(row["state"] != "applied" for row in arm.techniques):
        return None
    return result.ratio(arm.name)


def _saved(mean_ms: float, ratio: float) -> float:
    return mean_ms * (1 - 1 / ratio)


def _convict(nomination: Nomination, trace: Trace, result: Race) -> tuple[Finding | None, str]:
    tried = [(plan, _ratio(result, plan)) for plan in nomination.remedies]
    worked = [(plan, ratio) for plan, ratio in tried if ratio is not None]
    if not worked:
        return None, "none of its remedies could be applied"
    plan, ratio = max(worked, key=lambda pair: pair[1].median)
    words = f"{plan} gave {ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
    if not is_gain(ratio, result.floor):
        return None, f"{words}, identical runs differ by up to {result.floor:.1%}"
    mean = trace.step_ms()["mean"]
    at_most = nomination.at_most_ms
    if nomination.bound is not None:
        bound = _ratio(result, nomination.bound)
        if bound is not None:
            at_most = _saved(mean, bound.median)
    cost = _saved(mean, ratio.median)
    (name,) = plan.techniques
    exact = _exact_alternative(nomination, result, plan)
    remedy = f"{plan}: {words}"
    if exact:
        remedy += f"; keeping every bit: {exact}"
    return (
        Finding(
            rule=nomination.rule,
            kind=nomination.kind,
            cost_ms=cost,
            at_most_ms=max(cost, at_most),
            where=nomination.where,
            evidence=nomination.evidence,
            remedy=f"{remedy}. In the script: {nomination.advice[name]}",
            plan=plan.techniques,
            numerics=numerics_of(plan).value,
            confidence="high" if ratio.low > 1 + 2 * result.floor else "medium",
        ),
        words,
    )


def _exact_alternative(nomination: Nomination, result: Race, chosen: Plan) -> str:
    """Return, in words, the best remedy that is bit-exact, if the chosen one is not."""
    if numerics_of(chosen).value == "exact":
        return ""
    for plan in nomination.remedies:
        ratio = _ratio(result, plan)
        if numerics_of(plan).value == "exact" and ratio is not None:
            return f"{plan} gave {ratio.median:.2f}x"
    return ""
