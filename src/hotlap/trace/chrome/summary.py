"""What a trace of torch.profiler says: phases, idle time, and what takes the time by name."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hotlap.trace.chrome.idle import Idle, find_idle
from hotlap.trace.chrome.nesting import Interval, Node, nest
from hotlap.trace.chrome.phases import (
    BACKWARD,
    STEP,
    count_steps,
    is_region_name,
    phase_intervals,
    phase_ms,
    steps_in,
    training_thread,
    window_of,
)
from hotlap.trace.chrome.reading import (
    ANNOTATION,
    ON_DEVICE,
    OPERATOR,
    RUNTIMES,
    Allocation,
    Recording,
    Span,
)

_ID = "External id"
_SEQUENCE = "Sequence number"
_PINNED, _PAGEABLE = "pinned", "pageable"


@dataclass(frozen=True)
class Row:
    """What all spans of one name take in the window."""

    name: str
    kind: str
    """`operator`, `region`, `runtime`, `kernel`, `copy` or `memset`."""
    count: int
    total_ms: float
    self_ms: float
    """Without the operators and regions in it."""
    region: str = ""
    """The innermost region that the most of it lies in, empty for none."""
    operator: str = ""
    """Of a kernel, a copy or a synchronization: the operator that asked for the most of it."""
    where: str = ""
    """`file:line` of the user's, empty if not known."""
    bytes: int = 0
    """What a copy has copied, or an operator allocated by itself."""


@dataclass(frozen=True)
class Region:
    """A module, or another named region."""

    name: str
    count: int
    forward_ms: float
    """From its begin to its end on the host."""
    backward_ms: float
    """What autograd took for the operators in it, on the host."""


@dataclass(frozen=True)
class Summary:
    """What a trace says."""

    steps: int | None
    window_ms: float
    phases: Mapping[str, float]
    """ms of the whole window by phase, on the host; empty where only a device was recorded."""
    idle: Idle
    operators: tuple[Row, ...]
    kernels: tuple[Row, ...]
    copies: tuple[Row, ...]
    synchronizations: tuple[Row, ...]
    regions: tuple[Region, ...]
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """Device -> the most bytes that its allocator held, where memory was recorded."""
    notes: tuple[str, ...] = ()

    def per_step(self, ms: float) -> float:
        """Return a part of the window as ms per step; the whole if steps are not marked."""
        return ms / (self.steps or 1)

    def with_lines(self, lines: Mapping[tuple[str, str], str]) -> "Summary":
        """Return the same with source lines.

        Args:
            lines: (region, operator) -> `file:line`; with an empty region, of the operator
                wherever it is called.
        """

        def place(rows: tuple[Row, ...]) -> tuple[Row, ...]:
            return tuple(
                replace(row, where=lines.get((row.region, key)) or lines.get(("", key), ""))
                for row in rows
                for key in [row.operator or row.name]
            )

        return replace(
            self,
            operators=place(self.operators),
            kernels=place(self.kernels),
            copies=place(self.copies),
            synchronizations=place(self.synchronizations),
        )

    def to_json(self, rows: int | None = None) -> dict[str, Any]:
        """Return it as JSON, with at most so many rows of each table."""
        tables = ("operators", "kernels", "copies", "synchronizations", "regions")
        return {
            "steps": self.steps,
            "window_ms": self.window_ms,
            "phases": dict(self.phases),
            "idle": asdict(self.idle),
            **{name: [asdict(row) for row in getattr(self, name)[:rows]] for name in tables},
            "peak_bytes": dict(self.peak_bytes),
            "notes": list(self.notes),
        }


def summarize(recording: Recording) -> Summary:
    """Return what a trace says of its window: the marked steps, else everything."""
    nodes, window = nest(recording), window_of(recording)
    thread = training_thread(recording, nodes)
    phases = phase_intervals(nodes, thread)
    # What the profiler itself waits for at its end belongs to no step.
    last = max((span.end for span in steps_in(recording)), default=window[1])
    inside = [node for node in nodes if _starts_in(node.span, (window[0], last))]
    operators = _rows(node for node in inside if node.span.category == OPERATOR)
    by_id = {node.span.arguments.get(_ID): node for node in nodes if node.span.category == OPERATOR}
    by_id.pop(None, None)
    on_device = [span for span in recording.of(*ON_DEVICE) if _starts_in(span, window)]
    notes = []
    if recording.skipped:
        notes.append(f"{recording.skipped} events have no usable time and were ignored")
    if any(span.thread[0] != on_device[0].thread[0] for span in on_device):
        notes.append("several devices were recorded: idle is the time in which none of them ran")
    return Summary(
        steps=count_steps(recording),
        window_ms=(window[1] - window[0]) / 1e6,
        phases=phase_ms(phases, window) if thread is not None else {},
        idle=find_idle(recording, phases, window, thread),
        operators=_with_bytes(operators, recording.allocations, inside, window),
        kernels=_device_rows([s for s in on_device if s.category == ON_DEVICE[0]], by_id),
        copies=_device_rows([s for s in on_device if s.category == ON_DEVICE[1]], by_id),
        synchronizations=_rows(
            node
            for node in inside
            if node.span.category in RUNTIMES and "Synchronize" in node.span.name
        ),
        regions=_regions(nodes, window),
        peak_bytes=_peaks(recording.allocations, window),
        notes=tuple(notes),
    )


def totals(nodes: Iterable[Node]) -> dict[str, tuple[int, int, int]]:
    """Return name -> count, ns, and ns without what lies in it; steps count as one name."""
    found: dict[str, tuple[int, int, int]] = {}
    for node in nodes:
        name = f"{STEP[:-1]}*" if node.span.name.startswith(STEP) else node.span.name
        count, total, own = found.get(name, (0, 0, 0))
        found[name] = count + 1, total + node.span.ns, own + node.self_ns
    return found


def copy_direction(name: str) -> tuple[str, str]:
    """Return the direction of a copy, and `pinned` or `pageable` where one side is the host.

    >>> copy_direction("Memcpy HtoD (Pageable -> Device)")
    ('HtoD', 'pageable')
    """
    words = name.split()
    direction = words[1] if len(words) > 1 and words[0].lower() == "memcpy" else name
    if _PAGEABLE in name.lower():
        return direction, _PAGEABLE
    return direction, _PINNED if _PINNED in name.lower() else ""


def _starts_in(span: Span, window: Interval) -> bool:
    return window[0] <= span.start < window[1]


def _is_region(span: Span) -> bool:
    return span.category == ANNOTATION and is_region_name(span.name)


def _region_of(node: Node | None) -> str:
    around = () if node is None else (node, *node.ancestors())
    return next((each.span.name for each in around if _is_region(each.span)), "")


def _operator_of(node: Node) -> str:
    return next((a.span.name for a in node.ancestors() if a.span.category == OPERATOR), "")


def _rows(nodes: Iterable[Node]) -> tuple[Row, ...]:
    """Return rows by name, the largest time of its own first."""
    chosen = list(nodes)
    places: dict[str, Counter[tuple[str, str]]] = {}
    for node in chosen:
        is_runtime = node.span.category in RUNTIMES
        place = _region_of(node), _operator_of(node) if is_runtime else ""
        places.setdefault(node.span.name, Counter())[place] += node.self_ns
    kinds = {node.span.name: node.span.category for node in chosen}
    rows = []
    for name, (count, total, own) in totals(chosen).items():
        region, operator = places[name].most_common(1)[0][0]
        kind = "operator" if kinds[name] == OPERATOR else "runtime"
        rows.append(Row(name, kind, count, total / 1e6, own / 1e6, region, operator))
    return tuple(sorted(rows, key=lambda row: -row.self_ms))


def _device_rows(spans: Sequence[Span], by_id: Mapping[Any, Node]) -> tuple[Row, ...]:
    """Return rows by name of what ran on a device, with who asked for it."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.name, []).append(span)
    rows = []
    for name, group in found.items():
        places: Counter[tuple[str, str]] = Counter()
        for span in group:
            node = by_id.get(span.arguments.get(_ID))
            places[_region_of(node), "" if node is None else node.span.name] += span.ns
        region, operator = places.most_common(1)[0][0]
        ms = sum(span.ns for span in group) / 1e6
        kind = "copy" if group[0].category == ON_DEVICE[1] else "kernel"
        rows.append(Row(name, kind, len(group), ms, ms, region, operator, bytes=_bytes(group)))
    return tuple(sorted(rows, key=lambda row: -row.total_ms))


def _bytes(spans: Iterable[Span]) -> int:
    sizes = (span.arguments.get("bytes", 0) for span in spans)
    return sum(size for size in sizes if isinstance(size, int))


def _regions(nodes: Sequence[Node], window: Interval) -> tuple[Region, ...]:
    """Return the regions, in the order in which they first begin."""
    counts: Counter[str] = Counter()
    forward: Counter[str] = Counter()
    backward: Counter[str] = Counter()
    makers: dict[int, Node] = {}
    for node in nodes:
        number = node.span.arguments.get(_SEQUENCE, -1)
        is_backward = node.span.name.startswith(BACKWARD)
        if isinstance(number, int) and number >= 0:
            if is_backward:
                maker = makers.get(number)
                if maker is not None and _starts_in(node.span, window):
                    backward.update(dict.fromkeys(_regions_around(maker), node.span.ns))
            elif not any(each.span.name.startswith(BACKWARD) for each in node.ancestors()):
                # An operator that calls another bears its number, too: the last one is the maker.
                makers[number] = node
        if _is_region(node.span) and _starts_in(node.span, window):
            counts[node.span.name] += 1
            # A region in one of its own name would count twice.
            if node.span.name not in _regions_around(node):
                forward[node.span.name] += node.span.ns
    return tuple(
        Region(name, count, forward[name] / 1e6, backward[name] / 1e6)
        for name, count in counts.items()
    )


def _regions_around(node: Node) -> set[str]:
    return {each.span.name for each in node.ancestors() if _is_region(each.span)}


def _with_bytes(
    rows: tuple[Row, ...],
    allocations: Sequence[Allocation],
    nodes: Sequence[Node],
    window: Interval,
) -> tuple[Row, ...]:
    """Return the rows with what each operator allocated by itself."""
    taken = [each for each in allocations if each.bytes > 0 and window[0] <= each.at < window[1]]
    if not taken:
        return rows
    sizes: Counter[str] = Counter()
    for allocation, node in _around(taken, nodes):
        sizes[node.span.name] += allocation.bytes
    return tuple(replace(row, bytes=sizes[row.name]) for row in rows)


def _around(
    allocations: Sequence[Allocation], nodes: Sequence[Node]
) -> Iterator[tuple[Allocation, Node]]:
    """Give each allocation with the innermost operator of its thread around it."""
    last: dict[tuple[Any, Any], Node] = {}
    position = 0
    for allocation in allocations:
        while position < len(nodes) and nodes[position].span.start <= allocation.at:
            last[nodes[position].span.thread] = nodes[position]
            position += 1
        node = last.get(allocation.thread)
        while node is not None and not (
            node.span.end >= allocation.at and node.span.category == OPERATOR
        ):
            node = node.parent
        if node is not None:
            yield allocation, node


def _peaks(allocations: Sequence[Allocation], window: Interval) -> dict[str, int]:
    peaks: dict[str, int] = {}
    for each in allocations:
        if window[0] <= each.at < window[1]:
            name = {0: "cpu", 1: "cuda"}.get(each.device, f"device type {each.device}")
            peaks[name] = max(peaks.get(name, 0), each.total)
    return peaks
