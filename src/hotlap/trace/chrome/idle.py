"""When nothing ran in a trace, and what stood in these gaps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotlap.trace.chrome.nesting import Interval, clipped, length, union, without
from hotlap.trace.chrome.phases import LABEL, STEP, phase_at
from hotlap.trace.chrome.reading import (
    ANNOTATION,
    ON_DEVICE,
    OPERATOR,
    PYTHON,
    RUNTIMES,
    Recording,
    Span,
)

_GAPS = 5
_NAMES = 2
_COVERS = 0.5
"""Share of a gap that a span takes which stands in it."""


@dataclass(frozen=True)
class Gap:
    """A time in which nothing ran."""

    at_ms: float
    """From the start of the window."""
    ms: float
    phase: str
    """Of the host."""
    stood: tuple[str, ...]
    """What the host was in for most of it, from the innermost outwards; empty if nothing was
    recorded."""
    before: str
    """What ran last before it, empty for nothing."""
    after: str


@dataclass(frozen=True)
class Idle:
    """The time in which nothing ran."""

    of: str
    """`device`: no kernel and no copy; `training thread`: no operator."""
    ms: float
    gaps: tuple[Gap, ...]
    """The longest ones, the longest first."""


def find_idle(
    recording: Recording,
    phases: Mapping[str, list[Interval]],
    window: Interval,
    thread: tuple[Any, Any] | None,
) -> Idle:
    """Return when no kernel ran; in a trace without kernels, when the thread ran no operator.

    Args:
        recording: the trace.
        phases: when it was in which phase.
        window: what is looked at.
        thread: that takes the steps.
    """
    running = recording.of(*ON_DEVICE)
    on_device = bool(running)
    if not on_device:
        running = [span for span in recording.of(OPERATOR) if span.thread == thread]
    busy = union(clipped(((span.start, span.end) for span in running), window))
    gaps = without([window], busy)
    longest = sorted(gaps, key=lambda gap: gap[0] - gap[1])[:_GAPS]
    # A device waits for whatever the host does; a host that runs no operator runs Python.
    hosts = [
        span
        for span in recording.of(ANNOTATION, PYTHON)
        # Other threads have waits of their own.
        if span.thread == thread and not span.name.startswith(STEP)
    ]
    if on_device:
        hosts += recording.of(OPERATOR, *RUNTIMES)
    found = tuple(_describe(gap, window, running, hosts, phases) for gap in longest)
    return Idle("device" if on_device else "training thread", length(gaps) / 1e6, found)


def _describe(
    gap: Interval,
    window: Interval,
    running: Sequence[Span],
    hosts: Sequence[Span],
    phases: Mapping[str, list[Interval]],
) -> Gap:
    start, end = gap
    stood = [
        span
        for span in hosts
        if min(span.end, end) - max(span.start, start) > _COVERS * (end - start)
    ]
    stood.sort(key=lambda span: span.ns)
    named = [span for span in stood if not span.name.startswith(LABEL)]
    # Functions of Python's go deep: the part of the training that they belong to comes last.
    parts = [span for span in named if span.category == ANNOTATION]
    names = dict.fromkeys(span.name for span in (*named[:_NAMES], *parts[:1]))
    before = [span for span in running if span.end <= start]
    after = next((span.name for span in running if span.start >= end), "")
    return Gap(
        at_ms=(start - window[0]) / 1e6,
        ms=(end - start) / 1e6,
        phase=phase_at(phases, gap),
        stood=tuple(names),
        before=max(before, key=lambda span: (span.end, span.ns)).name if before else "",
        after=after,
    )
