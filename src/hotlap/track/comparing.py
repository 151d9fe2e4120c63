"""`compare_runs`: what two runs differ in, and where their values ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.track.kept_documents import figures_of, side_by_side, subject_of
from hotlap.track.records import as_json
from hotlap.track.run_file import RunInfo
from hotlap.track.runs import Run, read_run
from hotlap.track.tracker import flatten

PARTS = ("task", "plan", "host", "versions", "code")
"""Of `RunInfo`, in the order in which differences are told."""
SAME, NOT_KNOWN = "the same", "not known"
UNREADABLE = "unreadable"
"""What a list says in place of the state of a run whose files cannot be read."""


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

    def to_json(self) -> dict[str, Any]:
        """Return it as `hotlap runs compare --json` prints it."""
        first, second = (
            None if each is None else as_json(each) for each in (self.first, self.second)
        )
        return {"name": self.name, "first": first, "second": second}


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
    alike: Mapping[str, str] = field(default_factory=dict)
    """Each part in which the runs do not differ -> how far that is known, see `likeness`."""

    def to_json(self) -> dict[str, Any]:
        """Return it as `hotlap runs compare --json` prints it."""
        return {
            "runs": [summary(self.first), summary(self.second)],
            "differences": list(self.differences),
            "alike": dict(self.alike),
            "values": list(self.values),
            "system": list(self.system),
            "findings": list(self.findings),
        }


def compare_runs(first: Run, second: Run) -> Comparison:
    """Return what two runs differ in, and their last values."""
    differences: list[Difference] = []
    alike: dict[str, str] = {}
    for part in PARTS:
        said = [None if run.info is None else getattr(run.info, part) for run in (first, second)]
        mine, theirs = (flatten(each or {}) for each in said)
        found = [
            Difference(part, name, mine.get(name), theirs.get(name))
            for name in dict.fromkeys([*mine, *theirs])
            if mine.get(name) != theirs.get(name)
        ]
        differences += found
        if not found:
            alike[part] = likeness(part, *said)
    return Comparison(
        first,
        second,
        tuple(differences),
        _side_by_side(first.last(), second.last()),
        _side_by_side(first.system_means(), second.system_means()),
        tuple(Difference(*each) for each in side_by_side(first.findings, second.findings)),
        alike,
    )


def likeness(part: str, first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> str:
    """Return in words how far a part is the same in two runs that name no difference in it.

    Args:
        part: one of `PARTS`.
        first: what the first run's file says of it, None where it cannot be read.
        second: the same of the second run.
    """
    # A plan without techniques is a plan; of all else something is said where it is known.
    if first is None or second is None or not (first or part == "plan"):
        return NOT_KNOWN
    if part != "code":
        return SAME
    if not first.get("commit"):
        return NOT_KNOWN
    # What was changed since is in no file.
    return "same commit, both with uncommitted changes" if first.get("dirty") else SAME


def _side_by_side(first: Mapping[str, float], second: Mapping[str, float]) -> tuple[TwoValues, ...]:
    names = dict.fromkeys([*first, *second])
    return tuple(TwoValues(name, first.get(name), second.get(name)) for name in names)


def summary_of(folder: Path) -> dict[str, Any]:
    """Return what a list of runs says of the one in a folder, also if it cannot be read."""
    try:
        return summary(read_run(folder))
    except OSError as error:
        why = f"it cannot be read: {error.strerror or error}"
        return {**summary(Run(folder, None, ())), "state": UNREADABLE, "error": why}


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
        "last": {name: as_json(value) for name, value in run.last().items()},
        "findings": {kind: figures_of(kind, each) for kind, each in run.findings.items()},
    }
