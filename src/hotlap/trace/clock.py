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
    boundary comes before `take`.
    """

    name = "host"

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.current = OTHER
        self._now = now
        self._last = now()
        self._before: list[int] | None = None
        """What was marked and not yet taken."""
        self._since = [0] * len(PHASES)

    def enter(self, phase: int) -> None:
        """From now on time belongs to `phase`."""
        now = self._now()
        self._since[self.current] += now - self._last
        self._last = now
        self.current = phase

    def mark_boundary(self) -> None:
        """Everything up to now belongs to the step that is being made."""
        now = self._now()
        self._since[self.current] += now - self._last
        self._last = now
        before, self._before = self._before, self._since
        self._since = [0] * len(PHASES)
        if before is not None:
            self._before = [first + then for first, then in zip(before, self._before, strict=True)]

    def reset(self) -> None:
        """Forget what has been measured: the run begins now."""
        self._last = self._now()
        self._before = None
        self._since = [0] * len(PHASES)

    def take(self) -> Any:
        """Return the step up to its last boundary, ns by phase, and begin another."""
        row, self._before = self._before, None
        return row or [0] * len(PHASES)

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
        super().__init__()
        self._mark, self._is_capturing = mark, is_capturing
        self._marks: list[tuple[int, Any]] = [(OTHER, mark())]
        self._boundary = 0

    def enter(self, phase: int) -> None:
        self.current = phase
        if not self._is_capturing():
            self._marks.append((phase, self._mark()))

    def mark_boundary(self) -> None:
        self.enter(self.current)
        self._boundary = len(self._marks) - 1

    def reset(self) -> None:
        self._marks = [(self.current, self._mark())]
        self._boundary = 0

    def take(self) -> list[tuple[int, Any]]:
        marks = self._marks[: self._boundary + 1]
        self._marks = self._marks[self._boundary :]
        self._boundary = 0
        return marks

    def flush(self, rows: list[Any]) -> None:
        for position, marks in enumerate(rows):
            if marks and isinstance(marks[0], tuple):
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
