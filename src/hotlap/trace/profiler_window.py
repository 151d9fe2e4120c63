"""Some steps of a run under torch.profiler: one window for its trace, one for source lines."""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from hotlap.compat import find_optional
from hotlap.trace import frames
from hotlap.trace.chrome.phases import is_region_name
from hotlap.trace.profile_schema import CPU, CUDA, MEMORY, TRACE, WindowRecord
from hotlap.trace.regions import ModuleRegions, PhaseRegions, compiled_frames
from hotlap.usercode import is_users

_BEFORE = 3
"""Steps before anything is timed: they allocate, tune and compile."""
_PLAIN = 5
_RECORDED = 6
_WITH_LINES = 2
_LEAST_PLAIN, _LEAST_RECORDED = 1, 2
_SLOWER = 2.0
"""How many times longer a step may take that is recorded."""
_COMPILED = "modules have no regions: functions were compiled again once the modules had hooks"
_PROFILES_ITSELF = "nothing was recorded: the script runs a profiler of its own. Switch that off"


class ProfilerWindow:
    """Takes the steps of a run through warm-up, plain steps, recorded ones and those with lines.

    Args:
        kinds: what is recorded, of `CPU`, `CUDA` and `MEMORY`.
        folder: the trace and a `WindowRecord` are written there.
        seconds: fewer steps are taken if they take longer.
        roots: returns the models that are trained.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        folder: Path,
        seconds: float,
        roots: Callable[[], Sequence[torch.nn.Module]],
    ) -> None:
        self.phases = PhaseRegions()
        self._kinds, self._folder, self._seconds, self._roots = kinds, folder, seconds, roots
        self._has_operators = CPU in kinds or MEMORY in kinds
        self._modules: ModuleRegions | None = None
        self._profile: Any = None
        self._plain: list[float] = []
        self._recorded: list[float] = []
        self._lines: list[tuple[str, str, str]] = []
        self._notes: list[str] = []
        self._last = 0.0
        self._export_s = 0.0
        self._schedule = self._take_steps()

    def step_done(self) -> bool:
        """Go on to the next step; return True once everything was recorded."""
        return next(self._schedule, True)

    def close(self) -> None:
        """Write what was recorded, also where the run ended before everything was."""
        if self._profile is not None:
            # What was begun at the end of the run is no step.
            self._end_profile(keeps=bool(self._recorded) and not self._is_written())
        self._remove_regions()
        WindowRecord(
            has_trace=self._is_written(),
            plain_ms=_median_ms(self._plain),
            recorded_ms=_median_ms(self._recorded),
            steps=len(self._recorded),
            export_s=self._export_s,
            lines=tuple(self._lines),
            notes=tuple(self._notes),
        ).write(self._folder)

    def _take_steps(self) -> Iterator[bool]:
        """Give False after each step that another one is to follow."""
        for _ in range(_BEFORE):
            self._last = time.perf_counter()
            yield False
        step_s = time.perf_counter() - self._last
        for left in reversed(range(self._fitting(_PLAIN, _LEAST_PLAIN, step_s))):
            self._plain.append(self._lap())
            if left:
                yield False
        if _is_profiled():
            self._notes.append(_PROFILES_ITSELF)
            return
        yield from self._try_regions()
        self._begin_profile(with_lines=False)
        # The first step of a profiler is not recorded: what it sets up shows in it.
        yield False
        step_s = _SLOWER * max(self._plain)
        for _ in range(self._fitting(_RECORDED, _LEAST_RECORDED, step_s)):
            self._profile.step()
            self._last = time.perf_counter()
            yield False
            self._recorded.append(self._lap())
        self._end_profile(keeps=True)
        if self._has_operators:
            self._begin_profile(with_lines=True)
            yield False
            for _ in range(_WITH_LINES):
                self._profile.step()
                yield False
            self._end_profile(keeps=False)
        self._remove_regions()

    def _lap(self) -> float:
        now = time.perf_counter()
        took, self._last = now - self._last, now
        return took

    def _fitting(self, steps: int, least: int, step_s: float) -> int:
        """Return how many of these steps a third of the seconds has room for."""
        return max(least, min(steps, int(self._seconds / 3 / max(step_s, 1e-6))))

    def _try_regions(self) -> Iterator[bool]:
        """Name the modules, and take the names away again where they lead to a compilation."""
        if not self._has_operators:
            return
        self._modules = ModuleRegions(self._roots())
        if self._modules.left_out:
            self._notes.append(
                f"{self._modules.left_out} compiled or scripted modules have no regions"
            )
        if not compiled_frames():
            return
        yield False
        if self._modules.have_caused_compilation():
            self._modules.remove()
            self._modules = None
            self._notes.append(_COMPILED)
            yield False

    def _remove_regions(self) -> None:
        self.phases.end()
        if self._modules is not None:
            if compiled_frames() and (unseen := self._modules.unseen()):
                self._notes.append(
                    f"{unseen} modules have no regions: they are called by compiled functions, or "
                    "not at all"
                )
            self._modules.remove()
            self._modules = None

    def _begin_profile(self, *, with_lines: bool) -> None:
        activities = []
        if self._has_operators:
            activities.append(ProfilerActivity.CPU)
            self.phases.begin()
        if CUDA in self._kinds and not with_lines:
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=_warm_up_first,
            profile_memory=MEMORY in self._kinds and not with_lines,
            with_stack=with_lines,
            # There is one cycle; torch 2.11 warns unless it is told what becomes of events.
            acc_events=True,
            # The trace is written when it is asked for.
            on_trace_ready=lambda _: None,
        )
        self._profile.start()

    def _end_profile(self, *, keeps: bool) -> None:
        self.phases.end()
        ended, self._profile = self._profile, None
        try:
            ended.stop()
            began = time.perf_counter()
            if keeps:
                ended.export_chrome_trace(str(self._folder / TRACE))
                self._export_s = time.perf_counter() - began
            elif self._is_written():
                self._lines = _lines_of(ended)
        except RuntimeError as error:
            self._notes.append(f"torch.profiler failed: {str(error).splitlines()[0]}")

    def _is_written(self) -> bool:
        return (self._folder / TRACE).exists()


def _is_profiled() -> bool:
    """True while a profiler of torch's runs, of which there can be one."""
    is_enabled = find_optional("_profiler_enabled")
    return is_enabled is not None and bool(is_enabled())


def _warm_up_first(step: int) -> ProfilerAction:
    return ProfilerAction.WARMUP if step == 0 else ProfilerAction.RECORD


def _median_ms(seconds: Sequence[float]) -> float | None:
    return median(seconds) * 1e3 if seconds else None


def _lines_of(ended: Any) -> list[tuple[str, str, str]]:
    """Return (region, operator, line that the most of it is below), of operators in any region too.

    A frame says which line it called from; what an operator of the language calls, as `a * b`,
    has only the function that it lies in.
    """
    results = getattr(ended.profiler, "kineto_results", None)
    tree = getattr(results, "experimental_event_tree", None)
    if tree is None:
        return []
    found: dict[tuple[str, str], Counter[str]] = {}
    for region, operator, where, ns in _operators(tree()):
        for key in {(region, operator), ("", operator)}:
            found.setdefault(key, Counter())[where] += ns
    rows = ((*key, counts.most_common(1)[0][0]) for key, counts in found.items())
    return [row for row in rows if row[2]]


def _operators(tree: Sequence[Any]) -> Iterator[tuple[str, str, str, int]]:
    """Give (region, operator, line, ns of its own) of all operators.

    A region ends in another call than it has begun in, so the tree has nothing in it: what lies in
    it is found by its times.
    """
    found: list[tuple[Any, str]] = []
    stack = [(node, "") for node in tree]
    while stack:
        node, where = stack.pop()
        kind, extra = str(node.typed[0]).rpartition(".")[2], node.typed[1]
        if kind in ("PyCall", "PyCCall"):
            where = _place(extra, has_own_frame=kind == "PyCall") or where
        elif kind == "TorchOp" and ("::" in node.name or is_region_name(node.name)):
            found.append((node, where))
        stack += [(child, where) for child in node.children]
    found.sort(key=lambda row: row[0].start_time_ns)
    regions: dict[int, list[Any]] = {}
    for node, where in found:
        around = regions.setdefault(node.start_tid, [])
        while around and around[-1].end_time_ns <= node.start_time_ns:
            around.pop()
        if "::" in node.name:
            children = sum(c.duration_time_ns for c in node.children if _is_operator(c))
            region = around[-1].name if around else ""
            yield region, node.name, where, node.duration_time_ns - children
        else:
            around.append(node)


def _is_operator(node: Any) -> bool:
    return str(node.typed[0]).endswith("TorchOp")


def _place(extra: Any, *, has_own_frame: bool) -> str:
    """Return the user's line that a call came from, or the user's function that was called."""
    if has_own_frame:
        called = _real_file(extra.callsite.file_name)
        if called is not None and is_users(called):
            return f"{frames.shorten_path(called)} ({extra.callsite.function_name})"
    caller = _real_file(extra.caller.file_name)
    if caller is not None and is_users(caller):
        return f"{frames.shorten_path(caller)}:{extra.caller.line_number}"
    return ""


@lru_cache(maxsize=1024)
def _real_file(name: str) -> str | None:
    """Return the path of a file that the profiler named, less a folder of `sys.path`."""
    if os.path.isabs(name):
        return name
    paths = (os.path.join(folder or os.getcwd(), name) for folder in ("", *sys.path))
    return next((path for path in paths if os.path.exists(path)), None)
