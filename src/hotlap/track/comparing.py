"""`compare_runs`: what two runs differ in, and where their values ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hotlap.track.kept_documents import figures_of, side_by_side, subject_of
from hotlap.track.run_file import RunInfo
from hotlap.track.runs import Run
from hotlap.track.tracker import flatten

PARTS = ("task", "plan", "host", "versions", "code")
"""Of `RunInfo`, in the order in which differences are told."""


@dataclass(frozen=True)
class Difference:
    """One thing that two runs do not have alike."""

    part: str
    """One of `PARTS`."""
    name: str
    first: Any
    """None where the first run has no such thing."""
    second: Any


@dataclass(frozen=True)
class TwoValues:
    """One value of two runs."""

    name: str
    """As in `evaluation/accuracy`, or of a system metric."""
    first: float | None
    """None where the first run has no such value."""
    second: float | None


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side."""

    first: Run
    second: Run
    differences: tuple[Difference, ...]
    values: tuple[TwoValues, ...]
    """The last ones."""
    system: tuple[TwoValues, ...]
    """The means of system metrics."""
    findings: tuple[Difference, ...] = ()
    """Figures of what the folders keep, those that are alike included; a part is a kind."""

    def to_json(self) -> dict[str, Any]:
        """Return it as `hotlap runs compare --json` prints it."""
        return {
            "runs": [summary(self.first), summary(self.second)],
            "differences": list(self.differences),
            "values": list(self.values),
            "system": list(self.system),
            "findings": list(self.findings),
        }


def compare_runs(first: Run, second: Run) -> Comparison:
    """Return what two runs differ in, and their last values."""
    infos = first.info or RunInfo(), second.info or RunInfo()
    differences: list[Difference] = []
    for part in PARTS:
        mine, theirs = (flatten(getattr(info, part)) for info in infos)
        for name in dict.fromkeys([*mine, *theirs]):
            if mine.get(name) != theirs.get(name):
                differences.append(Difference(part, name, mine.get(name), theirs.get(name)))
    return Comparison(
        first,
        second,
        tuple(differences),
        _side_by_side(first.last(), second.last()),
        _side_by_side(first.system_means(), second.system_means()),
        tuple(Difference(*each) for each in side_by_side(first.findings, second.findings)),
    )


def _side_by_side(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[TwoValues, ...]:
    names = dict.fromkeys([*first, *second])
    return tuple(TwoValues(name, first.get(name), second.get(name)) for name in names)


def summary(run: Run) -> dict[str, Any]:
    """Return what a list of runs says of one, as plain data."""
    info = run.info or RunInfo(state="unknown")
    return {
        "folder": str(run.folder),
        "state": info.state,
        "error": info.error,
        "began": info.began,
        "seconds": run.seconds,
        "steps": run.steps,
        "recipe": subject_of(info.task),
        "plan": sorted(info.plan),
        "last": run.last(),
        "findings": {kind: figures_of(kind, each) for kind, each in run.findings.items()},
    }
