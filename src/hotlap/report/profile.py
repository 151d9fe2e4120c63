"""A summary of torch.profiler in a terminal: phases, gaps, kernels, operators, copies, modules."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hotlap.diagnosis.profile import Profile
from hotlap.report.printable import printable
from hotlap.trace.chrome.summary import Row, Summary, copy_direction

_ROWS = 8
_REGIONS = 12
_NAME = 60
"""Letters of a name that are shown."""
_BAR = 40


def section(profile: Profile, console: Console) -> None:
    """Print what was recorded, and what the recording cost."""
    summary = profile.summary
    kinds = ", ".join(profile.kinds)
    console.print(f"\nRecorded with torch.profiler ({kinds}), {summary.steps} steps:")
    _tables(summary, console)
    if profile.recorded_ms is not None and profile.plain_ms is not None:
        console.print(
            f"A recorded step took {profile.recorded_ms:.2f} ms, a step just before "
            f"{profile.plain_ms:.2f} ms. Recording cost {profile.cost_ms:.2f} ms a step, and "
            f"writing the trace {profile.export_s:.1f} s. These times are used for nothing else."
        )
    if profile.file is not None:
        console.print(
            f"The trace: {printable(str(profile.file))}, for TensorBoard "
            f"(--logdir {printable(str(profile.file.parent))}) and ui.perfetto.dev."
        )


def page(summary: Summary, path: Path, console: Console) -> None:
    """Print what a trace says."""
    if summary.steps is None:
        steps = "steps are not marked; times are those of the whole trace"
    else:
        steps = f"{summary.steps} steps; times are per step"
    console.print(f"\n{printable(str(path))}: {summary.window_ms:.1f} ms, {steps}.")
    _phases(summary, console)
    _gaps(summary, console)
    _tables(summary, console)
    for note in summary.notes:
        console.print(f"Note: {printable(note)}.")
    console.print("The profiler's own cost is in all of these times.")


def _phases(summary: Summary, console: Console) -> None:
    table = Table(box=None, show_header=False)
    for _ in range(4):
        table.add_column(justify="left")
    idle = summary.idle
    of = "no kernel and no copy runs" if idle.of == "device" else "no operator runs"
    for name, ms in (*summary.phases.items(), ("idle", idle.ms)):
        share = ms / summary.window_ms if summary.window_ms else 0.0
        bar = "#" * round(share * _BAR) if name != "idle" else f"({of}; part of the above)"
        table.add_row(name, f"{summary.per_step(ms):8.3f} ms", f"{share:5.1%}", bar)
    console.print(table)


def _gaps(summary: Summary, console: Console) -> None:
    if not summary.idle.gaps:
        return
    what = "the device" if summary.idle.of == "device" else "operators"
    console.print(f"\nThe longest gaps of {what}")
    for gap in summary.idle.gaps:
        stood = ", in ".join(_short(name) for name in gap.stood) or "nothing that was recorded"
        between = (
            f"between {_short(gap.before) or 'the start'} and {_short(gap.after) or 'the end'}"
        )
        console.print(f"  {gap.ms:8.3f} ms at {gap.at_ms:.1f} ms, {gap.phase}: {stood} ({between})")


def _tables(summary: Summary, console: Console) -> None:
    _rows("Kernels", summary.kernels, summary, console)
    _rows("Operators, by their own time", summary.operators, summary, console)
    _copies(summary, console)
    _rows("Synchronizations", summary.synchronizations, summary, console)
    _regions(summary, console)
    for device, size in summary.peak_bytes.items():
        since = ", of what was allocated while recording" if device == "cpu" else ""
        console.print(f"Most memory held on {device}: {size / 2**20:.1f} MiB{since}.")


def _rows(title: str, rows: Sequence[Row], summary: Summary, console: Console) -> None:
    if not rows:
        return
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for _ in range(5):
        table.add_column(justify="left")
    has_bytes = any(row.bytes for row in rows)
    for row in rows[:_ROWS]:
        place = row.where or row.region
        table.add_row(
            f"{summary.per_step(row.self_ms):8.3f} ms",
            f"{summary.per_step(row.count):6.1f} x",
            _short(row.name),
            printable(place) if not row.operator else printable(f"{row.operator} {place}".strip()),
            f"{summary.per_step(row.bytes) / 2**20:.2f} MiB" if has_bytes else "",
        )
    console.print(table)


def _copies(summary: Summary, console: Console) -> None:
    if not summary.copies:
        return
    table = Table(title="Copies", title_justify="left", box=None, show_header=False)
    for _ in range(6):
        table.add_column(justify="left")
    for row in summary.copies[:_ROWS]:
        direction, memory = copy_direction(row.name)
        table.add_row(
            f"{summary.per_step(row.total_ms):8.3f} ms",
            f"{summary.per_step(row.count):6.1f} x",
            printable(direction),
            memory,
            f"{summary.per_step(row.bytes) / 2**20:.2f} MiB",
            printable(f"{row.operator} {row.where or row.region}".strip()),
        )
    console.print(table)


def _regions(summary: Summary, console: Console) -> None:
    if not summary.regions:
        return
    title = "Modules and other regions, forward and backward on the host"
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    for _ in range(3):
        table.add_column(justify="left")
    longest = sorted(summary.regions, key=lambda each: -each.forward_ms - each.backward_ms)
    for row in longest[:_REGIONS]:
        table.add_row(
            f"{summary.per_step(row.forward_ms):8.3f} ms",
            f"{summary.per_step(row.backward_ms):8.3f} ms",
            _short(row.name),
        )
    console.print(table)


def _short(name: str) -> str:
    text = printable(name)
    return text if len(text) <= _NAME else f"{text[: _NAME - 3]}..."
