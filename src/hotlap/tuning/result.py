"""`Tuning`, `TrialRow`, `ProvenPlan`: what a tuning found, as JSON and as a plan file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import log
from typing import Any

from hotlap.lab.statistics import Ratio, Spread, figures
from hotlap.lab.verdict import Verdict
from hotlap.lab.whole_run import WholeRun
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict, Speedup
from hotlap.trace.schema import Trace
from hotlap.tuning.hints import HintAnswer

OUTCOMES = ("gain", "nothing_to_gain", "could_not_tell", "not_proven")
"""`nothing_to_gain` rests on measurements that rule out a gain worth having; `could_not_tell` is
said where they do not, `not_proven` where what was faster may not learn the same."""


_FAR = 0.15
"""Share by which a step of the whole run may differ from one of a race without a word about it."""


_SHOWN_S = 0.05
"""Seconds from which on a difference shows in a tenth of a second."""


@dataclass(frozen=True)
class TrialRow:
    """One plan that was tried, and what it gave."""

    plan: Plan
    race: int
    """0: in one live process with the plain script; in fresh processes: 1, alone; 2, in
    combination; more, once more."""
    speedup: Ratio | None
    ms: Spread | None
    note: str = ""
    by_means: float | None = None
    """How many times faster it was by the mean of all its steps."""
    took_effect: bool = True
    """False if a technique of the plan was not applied."""
    peak_bytes: int | None = None
    """Most bytes held at once: on a CPU by the process, else by torch on the device. None in one
    live process, where plans are switched."""

    def to_json(self) -> dict[str, Any]:
        """Return it as one entry of the report's trials."""
        return {
            "plan": self.plan.techniques,
            "race": self.race,
            "speedup": None if self.speedup is None else asdict(self.speedup),
            "ms": None if self.ms is None else asdict(self.ms),
            "by_means": self.by_means,
            "took_effect": self.took_effect,
            "note": self.note,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class ProvenPlan:
    """The fastest plan of one tier."""

    tier: str
    plan: Plan
    speedup: Ratio
    verdict: Verdict
    live: Ratio | None = None
    """What it gained in one live process, where it could be switched on and off."""
    fresh: Ratio | None = None
    """What it gained in fresh processes."""
    worth: float = 0.0
    """By which it was chosen: the seconds that it saves over the whole run, or its speed-up."""
    floor: float = 0.0
    """How far identical runs were apart where `speedup` was measured."""

    def to_json(self) -> dict[str, Any]:
        """Return it as one entry of the report's ladder."""
        return {
            "tier": self.tier,
            "plan": self.plan.techniques,
            "speedup": asdict(self.speedup),
            "noise_floor": self.floor,
            "verdict": self.verdict.to_json(),
        }


@dataclass(frozen=True)
class Tuning:
    """What a tuning found."""

    script: str
    plain: str
    """What it is measured against, in words."""
    outcome: str
    """One of `OUTCOMES`."""
    reason: str
    """Why there is no gain, in words; empty if there is one."""
    plan: Plan
    verdict: Verdict
    speedup: Ratio
    """By the medians of steps: in fresh processes, or in one live process where the fresh ones
    confirm the gain and are too noisy to give its size."""
    live: Ratio | None
    """In one live process, None if it could not be switched there."""
    fresh: Ratio | None
    """In fresh processes, None if nothing was gained."""
    speedup_by_means: float | None
    """The same by the means, None if nothing was gained."""
    baseline_ms: Spread
    best_ms: Spread
    floor: float
    """How far identical runs were apart: where `speedup` was measured, else in all races."""
    whole_run: Mapping[str, WholeRun]
    planned_steps: int | None
    proven_plans: tuple[ProvenPlan, ...]
    trials: tuple[TrialRow, ...]
    techniques: tuple[Mapping[str, str], ...]
    """{name, state, why}; the state is one of `technique_notes.STATES`."""
    not_tried: tuple[str, ...]
    """Candidates that were in no race."""
    hints: tuple[HintAnswer, ...]
    not_reached: tuple[str, ...]
    unprotected: tuple[str, ...]
    seconds: float
    trace: Trace
    aim: str = "run"
    """What the plan was chosen by, one of `tuner.AIMS`."""
    plain_peak_bytes: int | None = None
    """Most bytes that the plain run held at once in races, None if there was none."""
    memory: int | None = None
    """Bytes that plans had to fit into, None if any."""
    base: Plan = field(default_factory=Plan)
    """What all plans contain, the plain one too: without it the recipe does not fit."""
    best_phases: Mapping[str, float] | None = None
    """Phase -> ms of a mean step under the plan, in its own whole run; None if that was not
    watched."""
    best_phases_are_steady: bool = False
    """False if only the first epoch was watched, which may read what later ones have in memory."""
    pair_ms: tuple[float, float] | None = None
    """Ms of a step, plain and under the plan, in the paired turns whose ratio is the median; None
    if nothing was gained."""
    torch: str | None = None
    """Version that the trials ran with, which may be another interpreter's; None if not known."""
    live_decides: bool = True
    """True if plans were told apart by turns in one process, False if by fresh ones."""
    fresh_doubt: str = ""
    """Why fresh processes do not give the size of the gain, in words; empty if they do, or differ
    too much among themselves."""

    @property
    def gained(self) -> bool:
        return self.outcome == "gain"

    @property
    def shown_ms(self) -> tuple[float, float]:
        """Ms of a step, plain and under the plan, whose ratio is that of fresh processes."""
        return self.pair_ms or (self.baseline_ms.median, self.best_ms.median)

    @property
    def unproven(self) -> bool:
        """True if something was, or may be, faster, and that could not be proven."""
        return self.outcome in ("could_not_tell", "not_proven")

    @property
    def why_chosen(self) -> str:
        """Why not the proven plan with the fastest steps, in words; empty where it is that one."""
        chosen = next((each for each in self.proven_plans if each.plan == self.plan), None)
        if chosen is None or self.aim != "run" or self.planned_steps is None:
            return ""
        faster = max(self.proven_plans, key=lambda each: each.speedup.median)
        if faster.speedup.median <= chosen.speedup.median:
            return ""
        more = chosen.worth - faster.worth
        # By less than is shown: they are as good.
        words = f"{more:.1f} s more" if more >= _SHOWN_S else "as much"
        than = "than" if more >= _SHOWN_S else "as"
        words = (
            f"{chosen.plan} was chosen: over the whole run its steps and its start are expected to "
            f"save {words} {than} those of {faster.plan}"
        )
        if chosen.live is None or faster.live is None or not self.live_decides:
            return words
        return (
            f"{words}; switched on and off in one process, where turns differ less than processes "
            f"do, they gave {figures(chosen.live)} and {figures(faster.live)}"
        )

    @property
    def about_whole_run(self) -> str:
        """What the predicted whole run is made of, in words; empty where it is not predicted."""
        plain, best = self.whole_run["baseline"], self.whole_run["best"]
        if not self.gained or plain.seconds is None or best.seconds is None:
            return ""
        parts = (
            ("start-up", plain.start_s, best.start_s),
            ("steps", plain.steps_s, best.steps_s),
            ("between epochs", plain.between_s, best.between_s),
        )
        told = (
            f"{name} {before:.1f} -> {after:.1f} s"
            for name, before, after in parts
            if before or after
        )
        return ", ".join(told) + self._of_a_mean_step(plain, best)

    def _of_a_mean_step(self, plain: WholeRun, best: WholeRun) -> str:
        """Return what a step of the whole run takes, where it is not what it takes in a race."""
        before, after = (1e3 * run.steps_s / max(1, run.steps) for run in (plain, best))
        raced = self.shown_ms
        if min(before, after) <= 0:
            return ""
        if all(
            abs(log(mean / ms)) <= _FAR for mean, ms in zip((before, after), raced, strict=True)
        ):
            return ""
        words = f". On average a step of the whole run takes {before:.2f} -> {after:.2f} ms"
        if log(raced[0] / before) > _FAR:
            return f"{words}: the machine was slower in the race than when the run was watched"
        if before <= raced[0]:
            return f"{words}, the first epoch included"
        if plain.slowed > 1:
            return f"{words}, the first epoch and other processes included"
        words += ", the first epoch and slow steps included"
        if plain.slowdown <= 1:
            return words
        return f"{words}; late plain steps take {plain.slowdown:.1f} times as long as early ones"

    @property
    def inapplicable(self) -> tuple[str, ...]:
        """Techniques that were not even started: they cannot serve this script on this host."""
        started = {name for row in self.trials for name in row.plan.techniques}
        return tuple(
            row["name"]
            for row in self.techniques
            if row["state"] == "refused" and row["name"] not in started
        )

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON that `hotlap tune --json` prints."""
        return {
            "script": self.script,
            "for": self.aim,
            "outcome": self.outcome,
            "reason": self.reason,
            "plan": self.plan.techniques,
            "plan_hash": self.plan.hash,
            "baseline_ms": asdict(self.baseline_ms),
            "best_ms": asdict(self.best_ms),
            "pair_ms": list(self.pair_ms) if self.pair_ms else None,
            **self._phases(),
            "speedup": asdict(self.speedup),
            "speedup_by_means": self.speedup_by_means,
            "speedup_live": None if self.live is None else asdict(self.live),
            "speedup_fresh": None if self.fresh is None else asdict(self.fresh),
            "noise_floor": self.floor,
            "memory": {
                "limit_bytes": self.memory,
                "plain_peak_bytes": self.plain_peak_bytes,
                "base": self.base.techniques,
            },
            "whole_run": {
                "baseline_s": self.whole_run["baseline"].seconds,
                "best_s": self.whole_run["best"].seconds,
                "baseline_covers": self.whole_run["baseline"].covers,
                "best_covers": self.whole_run["best"].covers,
                "baseline_parts": self.whole_run["baseline"].parts(),
                "best_parts": self.whole_run["best"].parts(),
                "about": self.about_whole_run,
                "planned_steps": self.planned_steps,
                "planned_why": self.trace.facts.planned_why,
            },
            "verdict": self.verdict.to_json(),
            "ladder": [proven.to_json() for proven in self.proven_plans],
            "why_chosen": self.why_chosen,
            "trials": [row.to_json() for row in self.trials],
            "techniques": [dict(row) for row in self.techniques],
            "not_tried": list(self.not_tried),
            "hints": [
                {
                    "plan": hint.plan.techniques,
                    "measured": hint.measured,
                    "raced": None if hint.raced is None else asdict(hint.raced),
                    "why": hint.why,
                }
                for hint in self.hints
            ],
            "not_reached": list(self.not_reached),
            "unprotected": list(self.unprotected),
            "seconds": self.seconds,
            "anchor": asdict(self.trace.anchor),
        }

    def _phases(self) -> dict[str, Any]:
        return {
            "phases": self.trace.steady_phases(),
            "best_phases": None if self.best_phases is None else dict(self.best_phases),
            "best_phases_are_steady": self.best_phases_are_steady,
        }


def plan_file(tuning: Tuning, host: MeasuredOn) -> PlanFile:
    """Return the tuned plan with what it was measured on and what was proven of it.

    One that gains nothing, and only makes a recipe fit, was compared with nothing: it is written as
    people write one by hand.
    """
    if not tuning.gained:
        return PlanFile(plan=tuning.plan, measured="")
    ratio = tuning.speedup
    verdict = tuning.verdict
    states = {row["name"]: row["why"] for row in tuning.techniques}
    notes = {name: states.get(name, "") for name in tuning.plan.techniques}
    return PlanFile(
        plan=tuning.plan,
        host=replace(host, torch=tuning.torch or host.torch),
        verdict=PlanVerdict(verdict.tier, verdict.evidence, verdict.horizon_steps),
        speedup=Speedup(ratio.median, ratio.low, ratio.high),
        notes=notes,
    )
