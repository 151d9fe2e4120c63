"""Phase clock: attributes every instant of a run to exactly one phase."""

import itertools
import time
from collections.abc import Callable
from typing import Any

from hotlap.device.accelerator import Cuda
from hotlap.trace.schema import PHASES

DATA, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))


class PhaseClock:
    """Host time, in ns, by phase.

    `mark_boundary` ends a step provisionally: what follows belongs to the next one, unless another
    boundary comes before `take`. A step that nothing goes on with ends at a mark whose position
    `note_end` is given, and is taken by `take_ended`, many at once: each call is paid for in every
    step.

    Args:
        now: returns the time in ns.
    """

    name = "host"

    def __init__(self, now: Callable[[], Any] = time.perf_counter_ns) -> None:
        self.now = now
        """Returns the time, as `note` takes it."""
        self.marks: list[tuple[int, Any]] = [(OTHER, now())]
        """Phases, each with the time at which it began, since the newest step that was taken:
        some 200 bytes for each wait for a batch."""
        self.note = self.marks.append
        """Given a phase and `now()`, as a pair: what `enter` does, without a Python function, which
        costs some 4 us next to a model's kernels (benchmarks/results/2026-11-27_hooks_*.md)."""
        self._boundary = 0
        self._ends: list[int] = []
        """Positions of the marks that end steps, of those that were not taken."""
        self.note_end = self._ends.append
        """Given the position of a mark at which a step ends, so `len(marks)` before that mark."""

    @property
    def current(self) -> int:
        """The phase that has begun last. May be read in another thread."""
        return self.marks[-1][0]

    @property
    def ended(self) -> int:
        """How many steps have ended that were not taken."""
        return len(self._ends)

    def enter(self, phase: int) -> None:
        """From now on time belongs to `phase`."""
        self.marks.append((phase, self.now()))

    def mark_boundary(self) -> None:
        """Everything up to now belongs to the step that is being made."""
        marks = self.marks
        marks.append((marks[-1][0], self.now()))
        self._boundary = len(marks) - 1

    def reset(self) -> None:
        """Forget what has been measured: the run begins now."""
        self.marks[:] = [(self.current, self.now())]
        self._ends.clear()
        self._boundary = 0

    def take(self) -> Any:
        """Return the step up to its last boundary, ns by phase, and begin another."""
        end, self._boundary = self._boundary, 0
        return self._rows([end])[0]

    def take_ended(self) -> list[Any]:
        """Return the steps that have ended since they were taken last, each as `take` does."""
        rows = self._rows(self._ends)
        self._ends.clear()
        return rows

    def _rows(self, ends: list[int]) -> list[Any]:
        """Return the steps up to marks at these positions, and forget what was before the last."""
        marks, rows, begin = self.marks, [], 0
        for end in ends:
            row = [0] * len(PHASES)
            phase, last = marks[begin]
            for following, at in marks[begin + 1 : end + 1]:
                row[phase] += at - last
                phase, last = following, at
            rows.append(row)
            begin = end
        del marks[:begin]
        return rows

    def flush(self, rows: list[Any]) -> None:
        """Replace what `take` returned by numbers, where they had to be waited for."""


class DevicePhaseClock(PhaseClock):
    """Device time by phase, from events that the device passes; nothing waits for it.

    A phase is the time between two events in the stream's own order, so a device that idles while
    the host decodes shows as `data`. While a graph is captured no event is recorded: it would
    become a part of the graph.

    Args:
        mark: returns an event that stands behind everything queued on the device.
        is_capturing: True while the device captures a graph.
    """

    name = "device"

    def __init__(self, mark: Callable[[], Any], is_capturing: Callable[[], bool]) -> None:
        super().__init__(lambda: None if is_capturing() else mark())

    def _rows(self, ends: list[int]) -> list[Any]:
        marks, rows, begin = self.marks, [], 0
        before: list[tuple[int, Any]] = []
        for end in ends:
            between = marks[begin + 1 if before else begin : end + 1]
            row = [*before, *(mark for mark in between if mark[1] is not None)]
            rows.append(row)
            # Without an event at its end, the next step is timed from the one before that on.
            before, begin = row[-1:], end
        if ends:
            without = [marks[begin]] if marks[begin][1] is None else []
            marks[: begin + 1] = [*before, *without]
        return rows

    def flush(self, rows: list[Any]) -> None:
        for position, marks in enumerate(rows):
            if not marks:
                rows[position] = [0] * len(PHASES)
            elif isinstance(marks[0], tuple):
                marks[-1][1].synchronize()
                rows[position] = _device_row(marks)


def _device_row(marks: list[tuple[int, Any]]) -> list[int]:
    row = [0] * len(PHASES)
    for (phase, begin), (_, end) in itertools.pairwise(marks):
        row[phase] += int(begin.elapsed_time(end) * 1e6)
    return row


def phase_clock(device: str) -> PhaseClock:
    """Return the clock for a run on a device: the device's own where it has one, else the host's.

    Args:
        device: as torch names it. Nothing else is asked of a device than what the run does anyway,
            and nothing of any other device.
    """
    if device.partition(":")[0] == "cuda":
        hardware = Cuda(device)
        return DevicePhaseClock(hardware.timed_mark, hardware.is_capturing)
    return PhaseClock()
