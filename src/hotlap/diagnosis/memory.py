"""`MemoryDiagnosis`: what is alive at the peak, by line and kind; `hotlap.diagnose_memory`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotlap.diagnosis.autocast import AutocastEffect, find_autocast_effect
from hotlap.diagnosis.call import run_of
from hotlap.diagnosis.outfiles import check_snapshot
from hotlap.diagnosis.time_plan import Clock
from hotlap.errors import UsageError
from hotlap.host.facts import Host
from hotlap.lab.call_arguments import check_call
from hotlap.lab.memory import watch_memory
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.rules.memory import MemoryFinding, find_all
from hotlap.task import Task
from hotlap.techniques import EXACT_PLAN
from hotlap.trace.memory_schema import MemoryTrace
from hotlap.trace.memory_timeline import timeline_of

_ROWS = 10
_WATCH_SHARE = 0.3
_OF_THE_ENGINE = ("loop_variable", "gradients_in_forward")
"""Rules whose remedy is an edit of the loop, which a recipe does not have."""


@dataclass(frozen=True)
class Row:
    """Storages of one kind that one line made."""

    where: str
    """Empty for what is older than the window, or made outside the user's code."""
    kind: str
    bytes: int
    count: int
    is_older: bool = False
    """Made before the window."""


@dataclass(frozen=True)
class MemoryDiagnosis:
    """Where the memory of a script or a recipe goes."""

    script: str
    trace: MemoryTrace
    findings: tuple[MemoryFinding, ...]
    unprotected: tuple[str, ...] = ()
    is_recipe: bool = False
    autocast: AutocastEffect | None = None

    def at_peak(self) -> list[Row]:
        """Return what was alive at the peak, by line and kind, the largest first."""
        found: dict[tuple[str, str, bool], list[int]] = {}
        for number in self.trace.peak.blocks:
            block = self.trace.blocks[number]
            key = (block.where, block.kind, block.step == 0)
            found.setdefault(key, []).append(block.bytes)
        rows = [
            Row(where, kind, sum(sizes), len(sizes), is_older)
            for (where, kind, is_older), sizes in found.items()
        ]
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
                "autocast": self.autocast,
                "timeline": timeline_of(trace),
            },
            "unprotected": list(self.unprotected),
            "notes": list(trace.notes),
        }


def find_memory(
    lab: Lab,
    plan: Plan | None = None,
    *,
    budget_s: float = 60.0,
    snapshot: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryDiagnosis:
    """Find out where the memory of the lab's script or recipe goes.

    Args:
        lab: an entered `Lab`.
        plan: of a recipe; what `hotlap train` uses without one if None. A script runs as it is.
        budget_s: seconds that everything may take together. A start, and a step that has begun,
            are not interrupted.
        snapshot: where the history of a CUDA device's allocator is written, for PyTorch's viewer.
        progress: called with a line now and then.

    Raises:
        TrialError: the script or recipe crashed, hung, or never trained.
    """
    clock, seconds = Clock(budget_s), _WATCH_SHARE * budget_s
    is_recipe = lab.subject.kind == "recipe"
    plan = (EXACT_PLAN if plan is None else plan) if is_recipe else Plan()
    progress("observing the memory of the first steps, each slowed down")
    seen = watch_memory(
        lab, plan, seconds=seconds, snapshot=snapshot, within_s=budget_s, progress=progress
    )
    findings = [
        finding
        for finding in find_all(seen.trace)
        if not (is_recipe and finding.rule in _OF_THE_ENGINE)
    ]
    effect = find_autocast_effect(lab, seen, plan, clock, seconds=seconds, progress=progress)
    return MemoryDiagnosis(
        str(lab.subject),
        seen.trace,
        tuple(findings),
        unprotected=tuple(lab.unprotected),
        is_recipe=is_recipe,
        autocast=effect,
    )


def diagnose_memory(
    subject: str | os.PathLike[str] | Callable[..., Task],
    *,
    arguments: Mapping[str, Any] | Sequence[str] = (),
    budget: float = 60.0,
    device: str | None = None,
    plan: Plan | None = None,
    snapshot: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> MemoryDiagnosis:
    """Find out where the memory of a training script or a recipe goes.

    It says what takes memory without need, and what autocast does to memory and time. The first
    steps run several times in processes of their own, on a copy-on-write view of the files.

    Args:
        subject: the path of a script, which runs as it is, or the path or the function `task` of a
            recipe, which hotlap's engine trains.
        arguments: for a script its command line, as in `["--epochs", "10"]`; for a recipe what its
            function is called with, by name.
        budget: seconds that everything may take together.
        device: of a recipe, as torch names it; the first accelerator if None, else the CPU.
        plan: of a recipe; what `hotlap.train` uses without one if None.
        snapshot: file to which the history of a CUDA device's allocator is written, for PyTorch's
            viewer (pytorch.org/memory_viz). `trace.has_snapshot` of what is returned is False, and
            `trace.notes` say why, if it could not be written.
        progress: called with a line now and then.

    Raises:
        UsageError: what was given is neither, the recipe is wrong, or no snapshot can be made.
        TrialError: the plain script or recipe itself cannot be measured.

    >>> hotlap.diagnose_memory("train.py").findings        # doctest: +SKIP
    """
    check_call("hotlap.diagnose_memory", budget)
    run: Any = run_of(subject, arguments, device)
    if plan is not None and run.kind != "recipe":
        raise UsageError(
            f"plan={str(plan)!r} cannot be used with a script, whose memory is measured without a "
            "plan. Remove `plan`, or pass a recipe."
        )
    to = None if snapshot is None else Path(snapshot).absolute()
    if to is not None:
        check_snapshot(to, f"snapshot={os.fspath(to)!r}", Host.detect())
    with Lab(run) as lab:
        return find_memory(lab, plan, budget_s=budget, snapshot=to, progress=progress)
