"""The result of a diagnosis: findings, suspects and opportunities, as data and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hotlap.diagnosis.limits import Limits
from hotlap.diagnosis.profile import Profile
from hotlap.trace.schema import PHASES, HotLine, Trace

_LARGE = 0.1
"""Share of the step from which on a phase's lines are shown."""
_LINES = 3


UNDECIDED = "Undecided: "
"""How the reason of a suspect begins that was measured, without a result."""


@dataclass(frozen=True)
class Finding:
    """One cause, convicted: trying a remedy, or its bound, took this much off a step."""

    rule: str
    kind: str
    cost_ms: float
    low: float
    high: float
    """The interval of `cost_ms`, in ms."""
    at_most_ms: float
    where: str
    evidence: str
    remedy: str
    plan: Mapping[str, Any]
    """The plan that removes the cost; empty where only an edit of the script does."""
    numerics: str
    confidence: str
    bound_words: str = ""
    """What was done to the script to measure `at_most_ms`, as in `with one batch served again and
    again`; empty if it is the time that the watched run spent on it."""


def in_words_of_most(cost_ms: float, at_most_ms: float, bound_words: str, most: str) -> str:
    """Return what bounds the cost of a finding.

    Args:
        cost_ms: of the finding, as the two below.
        at_most_ms: see `Finding`.
        bound_words: see `Finding`.
        most: `at_most_ms` as it is shown.
    """
    if bound_words:
        return f"{bound_words}, a step takes {most} less"
    if cost_ms > at_most_ms:
        return f"more than the {most} that a step of the watched run spent on it"
    return f"a step of the watched run spent {most} on it"


@dataclass(frozen=True)
class Suspect:
    """What a rule suspects, and no trial has measured."""

    rule: str
    where: str
    evidence: str
    at_most_ms: float
    remedy: str
    why: str
    """Why it was not measured."""


@dataclass(frozen=True)
class Mistake:
    """Something because of which the script learns something else than is meant."""

    rule: str
    where: str
    evidence: str
    remedy: str


@dataclass(frozen=True)
class Opportunity:
    """A switch that is nobody's fault."""

    technique: str
    options: Mapping[str, Any]
    saves_ms: float
    low: float
    high: float
    numerics: str
    remedy: str = ""
    """What does the same in a script."""


@dataclass(frozen=True)
class Diagnosis:
    """Why a script or a recipe is slow."""

    script: str
    trace: Trace
    unprotected: tuple[str, ...]
    is_recipe: bool = False
    findings: tuple[Finding, ...] = ()
    opportunities: tuple[Opportunity, ...] = ()
    without_gain: tuple[str, ...] = ()
    """Switches that were tried and are no opportunities, in words."""
    ruled_out: tuple[str, ...] = ()
    """What was nominated and cost nothing that could be told from noise, in words."""
    suspects: tuple[Suspect, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    floor: float | None = None
    """How far identical runs differ; None where no trial was made."""
    limits: Limits = field(default_factory=Limits)
    """How fast a step could be on this machine at most."""
    notes: tuple[str, ...] = ()
    """What could not be done, and why."""
    profile: Profile | None = None
    """What torch.profiler recorded, where that was asked for."""

    def hot_lines(self) -> dict[str, tuple[HotLine, ...]]:
        """Return phase -> its hottest lines, for each phase that takes a large part of the step."""
        means = self.trace.phase_means()
        large = [name for name in PHASES if means[name] >= _LARGE * sum(means.values())]
        found = {}
        for name in large:
            lines = [line for line in self.trace.lines if line.phase == name]
            found[name] = tuple(sorted(lines, key=lambda line: -line.share)[:_LINES])
        return {name: lines for name, lines in found.items() if lines}

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON that `hotlap diagnose --json` prints."""
        trace = self.trace
        return {
            "script": self.script,
            "is_recipe": self.is_recipe,
            "step_ms": trace.step_ms(),
            "phases": trace.phase_means(),
            "findings": [asdict(finding) for finding in self.findings],
            "opportunities": [asdict(opportunity) for opportunity in self.opportunities],
            "without_gain": list(self.without_gain),
            "mistakes": [asdict(mistake) for mistake in self.mistakes],
            "suspects": [asdict(suspect) for suspect in self.suspects],
            "timeline": trace.timeline(),
            "lines": [asdict(line) for lines in self.hot_lines().values() for line in lines],
            "anchor": asdict(trace.anchor),
            "ruled_out": list(self.ruled_out),
            "noise_floor": self.floor,
            "limits": self.limits.to_json(),
            "process": None if trace.process is None else asdict(trace.process),
            "covers_whole_epochs": trace.covers_whole_periods,
            "planned_steps": trace.facts.planned_steps,
            "unprotected": list(self.unprotected),
            "notes": list(self.notes),
            **({} if self.profile is None else {"profile": self.profile.to_json()}),
        }
