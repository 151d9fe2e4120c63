"""When a trace is in which phase of a step: by hotlap's labels, else by torch's own names."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.trace.chrome.nesting import Interval, Node, clipped, length, union, without
from hotlap.trace.chrome.reading import ANNOTATION, ON_DEVICE, OPERATOR, Recording, Span
from hotlap.trace.schema import PHASES

LABEL = "hotlap."
"""Begins the name of a phase's region, as in `hotlap.data`."""
STEP = "ProfilerStep#"
_DATA = "enumerate(DataLoader)#"
_UPDATE = "Optimizer.step#"
_UPDATES = (_UPDATE, "Optimizer.zero_grad#")
BACKWARD = "autograd::engine::evaluate_function"
_NO_REGION = (LABEL, STEP, *_UPDATES, _DATA)


def is_region_name(name: str) -> bool:
    """True if an annotation names a module or another part, not a phase or a step."""
    return not name.startswith(_NO_REGION)


def steps_in(recording: Recording) -> list[Span]:
    """Return the regions of the profiler's steps, as the host marked them."""
    return [span for span in recording.of(ANNOTATION) if span.name.startswith(STEP)]


def count_steps(recording: Recording) -> int | None:
    """Return the training steps of a trace; None if nothing in it marks them."""
    steps = steps_in(recording)
    if steps:
        return len(steps)
    # With several optimizers, a step is one update of each.
    updates = Counter(
        span.name for span in recording.of(ANNOTATION, OPERATOR) if span.name.startswith(_UPDATE)
    )
    return max(updates.values(), default=None)


def training_thread(recording: Recording, nodes: Sequence[Node]) -> tuple[Any, Any] | None:
    """Return the thread that takes the steps; None in a trace of a device alone."""
    marks = (STEP, _UPDATE, LABEL)
    for span in recording.of(ANNOTATION, OPERATOR):
        if span.name.startswith(marks):
            return span.thread
    busy: Counter[tuple[Any, Any]] = Counter()
    for node in nodes:
        if node.span.category == OPERATOR and not node.span.name.startswith(BACKWARD):
            busy[node.span.thread] += node.self_ns
    return max(busy, key=lambda thread: busy[thread]) if busy else None


def window_of(recording: Recording) -> Interval:
    """Return what is looked at: the marked steps and what the device still does after them."""
    on_device = recording.of(*ON_DEVICE)
    steps = steps_in(recording)
    if steps:
        start = steps[0].start
        ends = [span.end for span in (*steps, *on_device)]
        return start, max(ends)
    spans = [*recording.of(OPERATOR, ANNOTATION), *on_device]
    return min(span.start for span in spans), max(span.end for span in spans)


def phase_intervals(nodes: Sequence[Node], thread: Any) -> Mapping[str, list[Interval]]:
    """Return phase -> when it was in it, disjoint; `other` is the rest.

    Args:
        nodes: of all threads: on a GPU, backward has one of its own.
        thread: that takes the steps.
    """
    own = [node for node in nodes if node.span.thread == thread]
    labels = {f"{LABEL}{phase}": phase for phase in PHASES}
    found: dict[str, list[Interval]] = {phase: [] for phase in PHASES[:-1]}
    is_labelled = False
    for node in own:
        phase = labels.get(node.span.name)
        if phase in found and node.span.category == ANNOTATION:
            found[phase].append((node.span.start, node.span.end))
            is_labelled = True
    return found if is_labelled else _by_names(nodes, own)


def phase_ms(phases: Mapping[str, list[Interval]], window: Interval) -> dict[str, float]:
    """Return phase -> ms in the window; together they are the window."""
    found = {phase: length(clipped(each, window)) / 1e6 for phase, each in phases.items()}
    return {**found, PHASES[-1]: (window[1] - window[0]) / 1e6 - sum(found.values())}


def phase_at(phases: Mapping[str, list[Interval]], gap: Interval) -> str:
    """Return the phase that takes the most of an interval."""
    shares = {phase: length(clipped(each, gap)) for phase, each in phases.items()}
    shares[PHASES[-1]] = gap[1] - gap[0] - sum(shares.values())
    return max(shares, key=lambda phase: shares[phase])


def _by_names(nodes: Sequence[Node], own: Sequence[Node]) -> dict[str, list[Interval]]:
    def intervals(prefix: str | tuple[str, ...]) -> list[Interval]:
        return union(
            (each.span.start, each.span.end) for each in own if each.span.name.startswith(prefix)
        )

    data, updates = intervals(_DATA), intervals(_UPDATES)
    between = [
        node.span.start
        for node in own
        if node.span.category == OPERATOR
        and not node.inside(OPERATOR)
        and not node.span.name.startswith((BACKWARD, _DATA, *_UPDATES))
        and not any(each.span.name.startswith((_DATA, *_UPDATES)) for each in node.ancestors())
    ]
    stops = sorted([*between, *(start for start, _ in (*data, *intervals(_UPDATE)))])
    backwards = _clusters(nodes, stops)
    ends = sorted(end for _, end in (*data, *intervals(_UPDATE), *backwards))
    forwards: list[Interval] = []
    for start, _ in backwards:
        before = bisect_left(ends, start + 1) - 1
        first = bisect_left(between, ends[before] if before >= 0 else 0)
        if first < len(between) and between[first] < start:
            forwards.append((between[first], start))
    updates = without(updates, data)
    taken = union([*data, *updates])
    backwards = without(backwards, taken)
    return {
        "data": data,
        "forward": without(union(forwards), union([*taken, *backwards])),
        "backward": backwards,
        "optimizer": updates,
    }


def _clusters(nodes: Sequence[Node], stops: Sequence[int]) -> list[Interval]:
    """Return when a backward ran: its functions, up to where the training goes on."""
    found: list[Interval] = []
    for node in nodes:
        if not node.span.name.startswith(BACKWARD):
            continue
        start, end = node.span.start, node.span.end
        goes_on = bool(found) and bisect_left(stops, found[-1][1]) == bisect_left(stops, start)
        if goes_on:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return union(found)
