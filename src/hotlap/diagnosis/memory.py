"""The diagnosis of memory: what the first steps allocate, and what takes memory without need."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotlap.attach.entry import Script
from hotlap.diagnosis.call import run_of
from hotlap.errors import UsageError
from hotlap.lab.call_arguments import check_call
from hotlap.lab.memory import watch_memory
from hotlap.lab.trial import Lab
from hotlap.rules.memory import MemoryFinding, find_all
from hotlap.task import Task
from hotlap.trace.memory_schema import MemoryTrace

_ROWS = 10
_WATCH_SHARE = 0.5


@dataclass(frozen=True)
class Row:
    """Storages of one kind that one line made."""

    where: str
    """Empty for what is older than the window, or made outside the user's code."""
    kind: str
    bytes: int
    count: int


@dataclass(frozen=True)
class MemoryDiagnosis:
    """Where the memory of a script goes."""

    script: str
    trace: MemoryTrace
    findings: tuple[MemoryFinding, ...]
    unprotected: tuple[str, ...] = ()
    is_recipe: bool = False

    def at_peak(self) -> list[Row]:
        """Return what was alive at the peak, by line and kind, the largest first."""
        found: dict[tuple[str, str], list[int]] = {}
        for number in self.trace.peak.blocks:
            block = self.trace.blocks[number]
            found.setdefault((block.where, block.kind), []).append(block.bytes)
        rows = [Row(*key, sum(sizes), len(sizes)) for key, sizes in found.items()]
        return sorted(rows, key=lambda row: -row.bytes)

    def growth_bytes_per_step(self) -> int:
        """Return the bytes that each step adds, by what the findings say."""
        return sum(finding.cost_bytes for finding in self.findings if finding.grows)

    def to_json(self) -> dict[str, Any]:
        """Return the report as the JSON that `hotlap diagnose --memory --json` prints."""
        trace, peak = self.trace, self.trace.peak
        return {
            "script": self.script,
            "is_recipe": self.is_recipe,
            "findings": [finding.to_json() for finding in self.findings],
            "memory": {
                "device": trace.device,
                "steps": trace.steps,
                "peak_bytes": peak.bytes,
                "peak_step": peak.step,
                "peak_phase": peak.phase,
                "by_kind": dict(peak.kinds),
                "at_peak": self.at_peak()[:_ROWS],
                "growth_bytes_per_step": self.growth_bytes_per_step(),
                "spikes": [
                    {"where": each.where, "bytes": each.cost_bytes}
                    for each in self.findings
                    if each.rule == "memory_spike"
                ],
                "resident_bytes": list(trace.resident),
                "device_peak": asdict(trace.device_peak) if trace.device_peak else None,
            },
            "unprotected": list(self.unprotected),
            "notes": list(trace.notes),
        }


def find_memory(
    lab: Lab,
    *,
    budget_s: float = 60.0,
    snapshot: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryDiagnosis:
    """Find out where the memory of the lab's script goes.

    Args:
        lab: an entered `Lab`.
        budget_s: fewer steps are observed if they take more than half of it.
        snapshot: where the history of a CUDA device's allocator is written, for PyTorch's viewer.
        progress: called with a line now and then.

    Raises:
        TrialError: the script crashed, hung, or never trained.
        UsageError: it is a recipe.
    """
    if lab.subject.kind == "recipe":
        raise UsageError(
            f"`{lab.subject}` is a recipe, whose memory is not observed yet. Expected: a training "
            "script. Use `hotlap train RECIPE --estimate` for a recipe."
        )
    progress("observing the memory of the first steps, each slowed down")
    trace = watch_memory(lab, seconds=_WATCH_SHARE * budget_s, snapshot=snapshot, progress=progress)
    return MemoryDiagnosis(
        str(lab.subject), trace, tuple(find_all(trace)), unprotected=tuple(lab.unprotected)
    )


def diagnose_memory(
    subject: str | os.PathLike[str] | Callable[..., Task],
    *,
    arguments: Mapping[str, Any] | Sequence[str] = (),
    budget: float = 60.0,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryDiagnosis:
    """Find out where the memory of a training script goes, and what takes it without need.

    Its first steps run in a process of their own, on a copy-on-write view of the files.

    Args:
        subject: the path of a script, which runs as it is.
        arguments: its command line, as in `["--epochs", "10"]`.
        budget: seconds; fewer steps are observed if they take more than half of it.
        progress: called with a line now and then.

    Raises:
        UsageError: what was given is no script.
        TrialError: the script itself cannot be measured.

    >>> hotlap.diagnose_memory("train.py").findings        # doctest: +SKIP
    """
    check_call("hotlap.diagnose_memory", budget)
    run: Any = run_of(subject, arguments, None)
    if not isinstance(run, Script):
        raise UsageError(
            f"`{run}` is a recipe, whose memory is not observed yet. Expected: the path of a "
            "training script. Use `hotlap train RECIPE --estimate` for a recipe."
        )
    with Lab(run) as lab:
        return find_memory(lab, budget_s=budget, progress=progress)
