"""`StepProfiler`: torch's profiler over some steps, whose regions and modules bear their names."""

import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerAction, ProfilerActivity, profile, record_function

from hotlap.trace.profile_schema import MODULE_MARK, PHASE_MARK

WARM_UP = 3
"""Steps before those that are profiled: the first ones allocate, and choose kernels."""
_MOST_STEPS = 4
_ENOUGH_S = 0.5
"""Seconds of profiled steps after which no further one is: a trace holds every call of Python."""


class StepProfiler:
    """Profiles some steps after the first ones.

    Whoever feeds it calls `watch` for each model, `enter_phase` as the step goes on, and
    `step_ends`, which says when enough was seen.

    Args:
        kinds: what is recorded: `cpu`, `cuda`, `memory`.
    """

    def __init__(self, kinds: Collection[str]) -> None:
        self._kinds = kinds
        self._profile: profile | None = None
        self._open: list[Any] = []
        """Regions that have begun, the phase first."""
        self._steps = self.profiled = 0
        self._last = 0.0
        self.profiled_s = 0.0
        """Seconds of those."""
        self._is_warming_up = True
        self._is_ended = False
        self.is_compiled = False
        """True if a part is compiled: what is inside it has no regions of its own."""

    def watch(self, model: torch.nn.Module) -> None:
        """Let the forward of each module be a region under its name."""
        for name, module in model.named_modules():
            if _is_compiled(module):
                self.is_compiled = True
                continue
            if any(_is_compiled(outer) for outer in _outer(model, name)):
                continue
            label = f"{name or type(module).__name__}{MODULE_MARK}{type(module).__name__})"
            self._label(module, label)

    def _label(self, module: torch.nn.Module, label: str) -> None:
        def begin(module: Any, args: Any) -> None:
            del module, args
            if self._profile is not None and not torch.compiler.is_compiling():
                self._begin(label)

        def end(module: Any, args: Any, output: Any) -> None:
            del module, args, output
            if self._profile is not None and not torch.compiler.is_compiling():
                self._end(label)

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end, always_call=True)

    def _begin(self, label: str) -> None:
        region = record_function(label)
        region.__enter__()
        self._open.append((label, region))

    def _end(self, label: str) -> None:
        # A module that was entered before the first profiled step has no region.
        if self._open and self._open[-1][0] == label:
            self._open.pop()[1].__exit__(None, None, None)

    def enter_phase(self, name: str) -> None:
        """Say which phase of the step begins."""
        if self._profile is not None:
            self._close()
            self._begin(f"{PHASE_MARK}{name}")

    def _close(self) -> None:
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)

    def step_ends(self) -> bool:
        """Say that a step has ended; True once enough were profiled."""
        now = time.perf_counter()
        self._steps += 1
        took, self._last = now - self._last, now
        if self._profile is None:
            if self._steps >= WARM_UP:
                self._start()
            return False
        self._close()
        if self._is_warming_up:
            self._is_warming_up = False
            self._profile.step()
            self.enter_phase("other")
            return False
        self.profiled += 1
        self.profiled_s += took
        if self.profiled >= _MOST_STEPS or self.profiled_s >= _ENOUGH_S:
            self.end()
            return True
        self._profile.step()
        self.enter_phase("other")
        return False

    def end(self) -> None:
        """End the profile: what comes next is no part of a step."""
        if self._profile is not None and not self._is_ended:
            self._is_ended = True
            self._close()
            self._profile.stop()

    def _start(self) -> None:
        chosen = [ProfilerActivity.CPU] if "cuda" not in self._kinds or "cpu" in self._kinds else []
        if "cuda" in self._kinds:
            chosen.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=chosen,
            # The profiler's own first step is slow, and is not kept. Only with a schedule steps are
            # marked.
            schedule=lambda step: ProfilerAction.RECORD if step else ProfilerAction.WARMUP,
            record_shapes=True,
            with_stack=True,
            profile_memory="memory" in self._kinds,
        )
        self._profile.start()
        self.enter_phase("other")
        self._last = time.perf_counter()

    def report(self, path: Path) -> dict[str, Any]:
        """End the profile, write it as a trace if a step was profiled, and say what it cost.

        Args:
            path: of the file.
        """
        self.end()
        if self._profile is not None and self.profiled:
            self._profile.export_chrome_trace(str(path))
        return {
            "profiled": self.profiled,
            "profiled_s": self.profiled_s / max(1, self.profiled),
            "is_compiled": self.is_compiled,
        }


def _is_compiled(module: torch.nn.Module) -> bool:
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or getattr(module, "_compiled_call_impl", None) is not None


def _outer(model: torch.nn.Module, name: str) -> Iterable[torch.nn.Module]:
    """Give the modules that hold one of that name, the model first."""
    yield model
    parts = name.split(".")
    for count in range(1, len(parts)):
        yield model.get_submodule(".".join(parts[:count]))
