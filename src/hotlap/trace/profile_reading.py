"""Reads a trace of torch's profiler, with or without hotlap's regions. No torch."""

import bisect
import gzip
import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.trace.profile_schema import MODULE_MARK, PHASE_MARK, Gap, Profile, Row

_STEP = "ProfilerStep#"
_HOST = ("cpu_op", "user_annotation")
_COPIES = ("gpu_memcpy", "gpu_memset")
_ON_DEVICE = ("kernel", *_COPIES)
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy")
_NODE = "autograd::engine::evaluate_function"
_MOST_ROWS, _MOST_GAPS = 15, 5
_ROUNDING_US = 0.01
"""Of the times in a trace: what ends with another may end behind it."""
_AT_ONCE_US = 1.0
"""What ran already when a profile began has this begin in it, about."""
_PHASES = ("data", "forward", "backward", "optimizer", "other")
_LIBRARIES = ("torch/", "hotlap/", "<", "nn.Module", "contextlib.py", "threading.py", "typing.py")
"""What the names of calls begin with that are no user's."""


@dataclass(eq=False)
class _Event:
    """A span of time on a thread of the host, or on a stream of a device; times in us."""

    name: str
    kind: str
    begin: float
    end: float
    thread: Any
    args: dict[str, Any]
    within: "_Event | None" = None
    """The operator or region of the same thread around it."""
    inner_us: float = 0.0
    """Time of the operators and regions directly below it."""

    @property
    def us(self) -> float:
        return self.end - self.begin

    @property
    def own_us(self) -> float:
        return max(0.0, self.us - self.inner_us)


def read_profile(path: Path) -> Profile:
    """Read a trace as `torch.profiler` exports it, also compressed by gzip.

    Args:
        path: of the file, `.json` or `.json.gz`.

    Raises:
        UsageError: it is no such trace, or it shows nothing that was computed.
    """
    return summarize(_load(path), str(path))


def _load(path: Path) -> list[Any]:
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        data = json.loads(content)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise UsageError(
            f"'{path}' cannot be read as a trace: {error}. Expected: a file that "
            "`torch.profiler.profile(...).export_chrome_trace` wrote."
        ) from error
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise UsageError(
            f"'{path}' has no `traceEvents`. Expected: a file that "
            "`torch.profiler.profile(...).export_chrome_trace` wrote."
        )
    return events


def summarize(events: Sequence[Any], name: str) -> Profile:
    """Return what the events of a trace show.

    Args:
        events: as in the JSON.
        name: of the file, for the message.

    Raises:
        UsageError: none of them is an operator or a kernel.
    """
    trace = _Trace(list(_spans(events)))
    if not trace.operators and not trace.on_device:
        raise UsageError(
            f"'{name}' shows no operator and no kernel. Expected: a trace of torch's profiler, "
            "with ProfilerActivity.CPU or CUDA among its activities."
        )
    return trace.profile()


def _spans(events: Iterable[Any]) -> Iterable[_Event]:
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        try:
            begin, length = float(event["ts"]), float(event.get("dur", 0.0))
        except (KeyError, TypeError, ValueError):
            continue
        thread = event.get("pid"), event.get("tid")
        args = event.get("args")
        yield _Event(
            str(event.get("name", "")),
            str(event.get("cat", "")).lower(),
            begin,
            begin + length,
            thread,
            args if isinstance(args, dict) else {},
        )


@dataclass
class _Trace:
    """The spans of a trace, nested and ordered."""

    spans: list[_Event]
    steps: list[_Event] = field(default_factory=list)
    operators: list[_Event] = field(default_factory=list)
    on_device: list[_Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spans.sort(key=lambda each: (each.begin, -each.end))
        host = [each for each in self.spans if each.kind in _HOST]
        _nest(host)
        self.steps = [each for each in host if each.name.startswith(_STEP)]
        self.on_device = [each for each in self.spans if each.kind in _ON_DEVICE]
        if self.steps:
            begin, end = self.steps[0].begin, self.steps[-1].end
        else:
            shown = host + self.on_device
            begin = min((each.begin for each in shown), default=0.0)
            end = max((each.end for each in shown), default=0.0)
        self.begin, self.end = begin, end
        self.host = [each for each in host if begin <= each.begin < end and each not in self.steps]
        self.operators = [each for each in self.host if each.kind == "cpu_op"]
        self.on_device = [each for each in self.on_device if begin <= each.begin]
        self.main = self._main_thread()
        self.calls = _by_thread(each for each in self.spans if each.kind == "python_function")

    def _main_thread(self) -> Any:
        if self.steps:
            return self.steps[0].thread
        spent: dict[Any, float] = defaultdict(float)
        for each in self.operators:
            spent[each.thread] += each.own_us
        return max(spent, key=lambda thread: spent[thread], default=None)

    def profile(self) -> Profile:
        count = max(1, len(self.steps))
        regions = [each for each in self.host if each.name.startswith(PHASE_MARK)]
        busy = _union((each.begin, each.end) for each in self.on_device)
        whole = self.end - self.begin
        kernels = [each for each in self.on_device if each.kind == "kernel"]
        copies = [each for each in self.on_device if each.kind in _COPIES]
        waits = [each for each in self.spans if each.name.startswith(_WAITS)]
        own = self._rows(self.operators, count, lambda each: each.own_us)
        return Profile(
            steps=count,
            step_ms=whole / count / 1e3,
            phases_ms={name: us / count / 1e3 for name, us in self._phases(regions).items()},
            operators=own,
            kernels=self._rows(kernels, count, lambda each: each.us),
            copies=self._rows(copies, count, lambda each: each.us),
            waits=self._rows(waits, count, lambda each: each.us),
            modules=self._modules(count),
            gaps=self._gaps(busy),
            device_busy=_length(busy) / whole if self.on_device and whole else None,
            has_phases=bool(regions),
        )

    def _rows(
        self, spans: Sequence[_Event], steps: int, us_of: Callable[[_Event], float]
    ) -> tuple[Row, ...]:
        spent: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        places: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for each in spans:
            spent[each.name] += us_of(each)
            calls[each.name] += 1
            if each.kind in _ON_DEVICE:
                continue
            places[each.name][self._line_of(each)] += us_of(each)
        largest = sorted(spent, key=lambda name: -spent[name])[:_MOST_ROWS]
        return tuple(
            Row(
                name,
                spent[name] / steps / 1e3,
                calls[name] / steps,
                max(places[name], key=lambda line: places[name][line], default=""),
            )
            for name in largest
        )

    def _line_of(self, span: _Event) -> str:
        """Return the user's innermost function that a span is in, empty if none was recorded."""
        for call in _around(self.calls.get(span.thread, []), span):
            if not call.name.startswith(_LIBRARIES) and "): " in call.name:
                return self._function(call)
        return ""

    def _function(self, call: _Event) -> str:
        """Return a function as `name (file:line)`; of what ran before the profile began, the line
        in the trace is not where it begins."""
        place, _, name = call.name.partition("): ")
        file, _, line = place.rpartition("(")
        is_known = call.begin > self.spans[0].begin + _AT_ONCE_US
        return f"{name} ({file}:{line})" if is_known else f"{name} ({file})"

    def _phases(self, regions: Sequence[_Event]) -> dict[str, float]:
        """Return us by phase, and what no operator of the main thread fills as `idle`."""
        main = [each for each in self.operators if each.thread == self.main]
        working = _union((each.begin, each.end) for each in main)
        found: dict[str, float] = dict.fromkeys(_PHASES, 0.0)
        if regions:
            for each in regions:
                name = each.name.removeprefix(PHASE_MARK)
                found[name if name in found else "other"] += each.us
        else:
            kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for each in self.host:
                kinds[_guess(each, self.main)].append((each.begin, each.end))
            taken: list[tuple[float, float]] = []
            for name in ("data", "optimizer", "backward", "forward"):
                before = _length(taken)
                taken = _union([*taken, *kinds[name]])
                found[name] = _length(taken) - before
            found["other"] = max(0.0, self.end - self.begin - _length(taken))
        found["idle"] = max(0.0, self.end - self.begin - _length(working))
        return found

    def _modules(self, steps: int) -> tuple[Row, ...]:
        regions = [each for each in self.host if _is_module(each)]
        backward: dict[Any, float] = defaultdict(float)
        for each in self.host:
            number = each.args.get("Sequence number")
            if each.name.startswith(_NODE) and number is not None:
                backward[number] += each.us
        found: dict[str, list[float]] = {}
        for each in regions:
            row = found.setdefault(each.name, [0.0, 0.0, 0.0])
            row[0] += each.us
            row[1] += 1
        for each in self.operators:
            number = each.args.get("Sequence number")
            # The first operator with that number is the one whose backward it is.
            if number not in backward or _is_in_backward(each):
                continue
            us, outer = backward.pop(number), each.within
            while outer is not None:
                if _is_module(outer):
                    found[outer.name][2] += us
                outer = outer.within
        ranked = sorted(found, key=lambda name: -(found[name][0] + found[name][2]))
        return tuple(
            Row(
                name.rpartition(MODULE_MARK)[0],
                found[name][0] / steps / 1e3,
                found[name][1] / steps,
                more_ms=found[name][2] / steps / 1e3,
            )
            for name in ranked[: 2 * _MOST_ROWS]
        )

    def _gaps(self, busy: Sequence[tuple[float, float]]) -> tuple[Gap, ...]:
        main = [each for each in self.operators if each.thread == self.main]
        filled = busy if self.on_device else _union((each.begin, each.end) for each in main)
        edges = [(self.begin, self.begin), *filled, (self.end, self.end)]
        gaps = [
            (before[1], after[0])
            for before, after in itertools.pairwise(edges)
            if after[0] > before[1]
        ]
        gaps.sort(key=lambda gap: gap[0] - gap[1])
        return tuple(
            Gap((end - begin) / 1e3, (begin - self.begin) / 1e3, self._during(begin, end))
            for begin, end in gaps[:_MOST_GAPS]
        )

    def _during(self, begin: float, end: float) -> str:
        """Return the innermost call or region of the host that lasts through a gap."""
        gap = _Event("", "", begin, end, self.main, {})
        calls = _around(self.calls.get(self.main, []), gap)
        users = next((self._function(c) for c in calls if not c.name.startswith(_LIBRARIES)), "")
        regions = [
            each.name
            for each in self.host
            if each.thread == self.main and each.begin <= begin and end <= each.end
        ]
        region = regions[-1] if regions else ""
        return ", ".join(name for name in (region.removeprefix(PHASE_MARK), users) if name)


def _nest(spans: Sequence[_Event]) -> None:
    """Let each span know what is around it; they are in order."""
    running: dict[Any, list[_Event]] = defaultdict(list)
    for each in spans:
        stack = running[each.thread]
        while stack and stack[-1].end <= each.begin + _ROUNDING_US:
            stack.pop()
        if stack and each.end <= stack[-1].end + _ROUNDING_US:
            each.within = stack[-1]
            stack[-1].inner_us += each.us
        stack.append(each)


def _by_thread(spans: Iterable[_Event]) -> dict[Any, list[_Event]]:
    found: dict[Any, list[_Event]] = defaultdict(list)
    for each in spans:
        found[each.thread].append(each)
    for thread in found.values():
        _nest(thread)
    return found


def _around(calls: Sequence[_Event], span: _Event) -> Iterable[_Event]:
    """Give the calls that last through a span, the innermost first."""
    place = bisect.bisect_right(calls, span.begin, key=lambda each: each.begin) - 1
    call = calls[place] if place >= 0 else None
    while call is not None:
        if call.end >= span.end:
            yield call
        call = call.within


def _is_in_backward(span: _Event) -> bool:
    outer = span.within
    while outer is not None:
        if outer.name.startswith(_NODE):
            return True
        outer = outer.within
    return False


def _is_module(span: _Event) -> bool:
    return span.kind == "user_annotation" and MODULE_MARK in span.name and span.name.endswith(")")


def _guess(span: _Event, main: Any) -> str:
    """Return the phase of an operator of a trace without regions, by its name and thread."""
    name = span.name
    if name.startswith("enumerate(DataLoader)"):
        return "data"
    if name.startswith("Optimizer."):
        return "optimizer"
    if name.startswith(_NODE):
        return "backward"
    return "forward" if span.kind == "cpu_op" and span.thread == main else "none"


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def _length(spans: Sequence[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in spans)
