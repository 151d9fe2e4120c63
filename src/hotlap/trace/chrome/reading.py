"""Reads a trace that torch.profiler has exported: its complete events as spans."""

import gzip
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotlap.errors import MissingFile, UsageError

OPERATOR, ANNOTATION, PYTHON = "cpu_op", "user_annotation", "python_function"
RUNTIMES = ("cuda_runtime", "cuda_driver")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_EXPECTED = (
    "a trace that torch.profiler has exported, by `export_chrome_trace` or "
    "`tensorboard_trace_handler`"
)
_GZIP = b"\x1f\x8b"
_BEGINS = 256
"""Bytes of a file that are looked at to tell what it is."""
_LEFT_OUT = {
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
}
"""What torch's own tables leave out, too: it belongs to the operator around it."""
_PARTS = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.")
"""Begin the names of parts of the training, which are no operators."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """One complete event."""

    name: str
    category: str
    thread: tuple[Any, Any]
    """Process and thread, or device and stream."""
    start: int
    """In ns, on the trace's own clock."""
    end: int
    arguments: Mapping[str, Any]

    @property
    def ns(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Memory that was taken (or given back, if `bytes` is negative)."""

    thread: tuple[Any, Any]
    at: int
    bytes: int
    total: int
    """Bytes that the device's allocator then held; 0 if not known."""
    device: int
    """Type of the device, as torch numbers it: 0 is the CPU."""


@dataclass(frozen=True)
class Recording:
    """What a trace holds."""

    spans: tuple[Span, ...]
    """By their start; what begins at once, the longest first."""
    allocations: tuple[Allocation, ...]
    skipped: int
    """Events without a usable time."""

    def of(self, *categories: str) -> list[Span]:
        """Return the spans of some categories."""
        return [span for span in self.spans if span.category in categories]


def is_trace_file(path: str) -> bool:
    """True if a file is named so, or holds JSON, and is neither a script nor a notebook."""
    if path.endswith((".json", ".json.gz")):
        return True
    if path.endswith((".py", ".pyw", ".ipynb")):
        return False
    try:
        with open(path, "rb") as file:
            begin = file.read(_BEGINS)
    except OSError:
        return False
    return begin.startswith(_GZIP) or begin.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")


def read_trace(path: Path) -> Recording:
    """Return what a trace holds.

    Raises:
        MissingFile: there is no such file.
        UsageError: it cannot be read, is damaged, or is no trace of torch.profiler.
    """
    data = _parse(path, _text(path))
    events: Any = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise UsageError(f"'{path}' is JSON without a list `traceEvents`. Expected: {_EXPECTED}.")
    recording = _recording(events)
    if not recording.of(OPERATOR, *ON_DEVICE):
        raise UsageError(
            f"'{path}' holds {len(events):,} events, and no operator or kernel among them. "
            f"Expected: {_EXPECTED}, recorded while a model was trained."
        )
    return recording


def _text(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content.startswith(_GZIP) else content
    except FileNotFoundError as error:
        raise MissingFile(f"trace '{path}' was not found. Expected: {_EXPECTED}.") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UsageError(
            f"'{path}' is damaged: its compressed data are incomplete or changed ({error}). "
            f"Expected: {_EXPECTED}. Export it again."
        ) from error
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be read: {error.strerror}. Check the path and its permissions. "
            f"Expected: {_EXPECTED}."
        ) from error


def _parse(path: Path, text: bytes) -> Any:
    try:
        # Names of threads and kernels have been seen with control characters in them.
        return json.loads(text, strict=False)
    except RecursionError as error:
        raise UsageError(
            f"'{path}' is nested too deeply to be a trace. Expected: {_EXPECTED}."
        ) from error
    except ValueError as error:
        raise UsageError(
            f"'{path}' is damaged, or not JSON: {error}. Expected: {_EXPECTED}. If the process "
            "that wrote it was ended meanwhile, export it again."
        ) from error


def _recording(events: list[Any]) -> Recording:
    spans: list[Span] = []
    allocations: list[Allocation] = []
    skipped = 0
    for event in events:
        if not isinstance(event, dict):
            skipped += 1
        elif event.get("ph") == "X":
            span = _span(event)
            if span is None:
                skipped += 1
            elif span.name not in _LEFT_OUT:
                spans.append(span)
        elif event.get("name") == "[memory]":
            allocation = _allocation(event)
            if allocation is not None:
                allocations.append(allocation)
    spans.sort(key=lambda span: (span.start, -span.end))
    allocations.sort(key=lambda each: each.at)
    return Recording(tuple(spans), tuple(allocations), skipped)


def _span(event: Mapping[str, Any]) -> Span | None:
    start, ns = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
    name = event.get("name")
    if start is None or ns is None or ns < 0 or not isinstance(name, str):
        return None
    return Span(name, _category(event, name), _thread(event), start, start + ns, _arguments(event))


def _category(event: Mapping[str, Any], name: str) -> str:
    category = str(event.get("cat", "")).lower()
    # As older versions of torch call them.
    if category in (OPERATOR, "operator") and name.startswith(_PARTS):
        return ANNOTATION
    return {"operator": OPERATOR, "runtime": RUNTIMES[0], "memcpy": ON_DEVICE[1]}.get(
        category, category
    )


def _thread(event: Mapping[str, Any]) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _nanoseconds(value: Any) -> int | None:
    """Return microseconds as whole ns: sums of floats would move a child out of its parent."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(value * 1000)


def _allocation(event: Mapping[str, Any]) -> Allocation | None:
    arguments, at = _arguments(event), _nanoseconds(event.get("ts"))
    size, total = arguments.get("Bytes"), arguments.get("Total Allocated", 0)
    device = arguments.get("Device Type", 0)
    if at is None or not all(isinstance(each, int) for each in (size, total, device)):
        return None
    return Allocation(_thread(event), at, int(size or 0), total, device)
