"""`--profile` of a diagnosis: checked; steps under torch.profiler summarized, their trace kept."""

import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotlap.diagnosis.time_plan import Clock
from hotlap.errors import TrialError, UnknownName, UsageError, unknown_name
from hotlap.host.facts import Host
from hotlap.lab.profiling import record_window
from hotlap.lab.trial import Lab
from hotlap.trace.chrome.reading import read_trace
from hotlap.trace.chrome.summary import Summary, summarize
from hotlap.trace.profile_schema import CPU, CUDA, KINDS, WindowRecord
from hotlap.trace.schema import Trace

_SHARE = 0.25
"""Of what is left of the budget."""
_LEAST_S = 3.0
"""What the steps of a small model take, with the trace that is written and read."""
_ROWS = 20
_NOTHING = "nothing was recorded"


@dataclass(frozen=True)
class ProfileRequest:
    """What is to be recorded."""

    kinds: tuple[str, ...]
    """Of `KINDS`; if empty, operators, and kernels where the script computes on a GPU."""
    folder: Path | None
    """Where the trace is written; nowhere if None."""


@dataclass(frozen=True)
class Profile:
    """What was recorded, and what the recording cost. Its times are used for nothing else."""

    kinds: tuple[str, ...]
    summary: Summary
    file: Path | None
    """The trace; None if it was not asked for."""
    recorded_ms: float | None
    """Median step while it was recorded."""
    plain_ms: float | None
    """Median step just before, in the same process; None if there was none."""
    export_s: float
    """What it took to write the trace."""

    @property
    def cost_ms(self) -> float | None:
        """What recording adds to a step, in ms."""
        if self.recorded_ms is None or self.plain_ms is None:
            return None
        return self.recorded_ms - self.plain_ms

    def to_json(self) -> dict[str, Any]:
        """Return it as part of the JSON that `hotlap diagnose --json` prints."""
        return {
            "kinds": list(self.kinds),
            "file": None if self.file is None else str(self.file),
            "recorded_step_ms": self.recorded_ms,
            "plain_step_ms": self.plain_ms,
            "cost_ms": self.cost_ms,
            "export_s": self.export_s,
            **self.summary.to_json(_ROWS),
        }


def request_profile(
    kinds: Sequence[str],
    folder: str | os.PathLike[str] | None,
    host: Host,
    names: tuple[str, str] = ("--profile ", "--trace "),
) -> ProfileRequest | None:
    """Return what is to be recorded; None if nothing was asked for.

    Args:
        kinds: what was given as such.
        folder: where the trace is to be written.
        host: where it is recorded.
        names: how both are given, for messages.

    Raises:
        UnknownName: there is no such kind.
        UsageError: no trace can be written there, or the host has no GPU.
    """
    if not kinds and folder is None:
        return None
    for kind in kinds:
        if kind not in KINDS:
            raise UnknownName(unknown_name(kind, KINDS, names[0].rstrip(" =")))
    if CUDA in kinds and not host.gpus:
        raise UsageError(
            f"{names[0]}{CUDA}: no CUDA GPU was found on this host, so there are no kernels to "
            f"record. Use {names[0]}{CPU}."
        )
    path = None if folder is None else Path(folder).absolute()
    if path is not None and path.exists() and not path.is_dir():
        raise UsageError(
            f"{names[1]}{folder} is a file. Expected: a folder for the trace, which is created if "
            "it does not exist."
        )
    if path is not None and not path.parent.is_dir():
        raise UsageError(
            f"{names[1]}{folder}: the folder '{path.parent}' was not found. Create it, or choose "
            "another one."
        )
    if path is not None and not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(
            f"{names[1]}{folder}: the folder cannot be written to. Choose another one, or change "
            "its permissions."
        )
    return ProfileRequest(tuple(dict.fromkeys(kinds)), path)


def take_profile(
    lab: Lab,
    request: ProfileRequest,
    trace: Trace,
    clock: Clock,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[Profile | None, tuple[str, ...]]:
    """Record some steps in a process of their own.

    Args:
        lab: an entered `Lab`.
        request: what is recorded.
        trace: the run, watched without a profiler.
        clock: the budget.
        progress: called with a line now and then.

    Returns:
        The profile, None if there is none; and notes, which say why.
    """
    if clock.left < trace.setup_s:
        needed = clock.seconds - clock.left + trace.setup_s + _LEAST_S
        why = f"the rest of the budget is too short: use --budget {math.ceil(needed)}s or more"
        return None, (f"{_NOTHING} with torch.profiler: {why}",)
    kinds = request.kinds or ((CPU, CUDA) if trace.facts.device == CUDA else (CPU,))
    progress(f"recording some steps with torch.profiler: {', '.join(kinds)}")
    found: list[tuple[Profile | None, tuple[str, ...]]] = []
    try:
        record_window(
            lab,
            kinds,
            lambda file, record: found.append(_profile(file, record, kinds, request.folder)),
            seconds=_SHARE * clock.left,
            progress=progress,
        )
    except TrialError as error:
        return None, (f"{_NOTHING} with torch.profiler: {str(error).splitlines()[0]}",)
    return found[-1]


def _profile(
    file: Path, record: WindowRecord, kinds: tuple[str, ...], folder: Path | None
) -> tuple[Profile | None, tuple[str, ...]]:
    if not record.has_trace:
        why = "; ".join(record.notes) or f"{_NOTHING} with torch.profiler: the run is too short"
        return None, (why,)
    try:
        summary = summarize(read_trace(file))
    except UsageError as error:
        return None, (f"{_NOTHING} with torch.profiler: {error}",)
    if summary.steps is None:
        # Without operators there are no marks either.
        summary = replace(summary, steps=record.steps)
    lines = {(region, operator): where for region, operator, where in record.lines}
    profile = Profile(
        kinds=kinds,
        summary=summary.with_lines(lines),
        file=None if folder is None else _keep(file, folder),
        recorded_ms=record.recorded_ms,
        plain_ms=record.plain_ms,
        export_s=record.export_s,
    )
    if CUDA in kinds and not summary.kernels:
        return profile, (*record.notes, "torch.profiler recorded no kernel")
    return profile, record.notes


def _keep(file: Path, folder: Path) -> Path:
    """Copy a trace into a folder, under a name that TensorBoard looks for, and Perfetto takes."""
    folder.mkdir(exist_ok=True)
    name = f"{socket.gethostname()}_{os.getpid()}.{time.time_ns() // 10**6}.pt.trace.json"
    shutil.copyfile(file, folder / name)
    return folder / name
