"""A profile as a page: phases, operators, modules, copies, waits and gaps."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from hotlap.lab.profiling import Profiled
from hotlap.report.printable import printable
from hotlap.trace.profile_schema import Profile, Row

_FEW = 8
_WORTH_MS = 0.01


def page_of_trial(found: Profiled, plain_ms: float, console: Console) -> None:
    """Print what profiling a script has shown.

    Args:
        found: the profile.
        plain_ms: what a step takes without the profiler.
        console: where it is printed.
    """
    profile = found.profile
    console.print(
        f"\nProfile of {profile.steps} further steps: {found.profiled_ms:.2f} ms each instead of "
        f"{plain_ms:.2f} ms, so these times are used nowhere else"
    )
    _tables(profile, console)
    if found.is_compiled:
        console.print("A part of the model is compiled: its modules have no regions of their own.")
    if found.file:
        console.print(printable(f"Trace: {found.file}"), soft_wrap=True)
        console.print("Open it in TensorBoard (pip install torch-tb-profiler) or Perfetto.")


def page(profile: Profile, console: Console) -> None:
    """Print what a trace shows that somebody has recorded."""
    console.print(f"{profile.steps} steps of {profile.step_ms:.2f} ms under the profiler")
    _tables(profile, console)
    if not profile.has_phases:
        console.print("Phases were told from the names of operators.")


def _tables(profile: Profile, console: Console) -> None:
    whole = sum(ms for name, ms in profile.phases_ms.items() if name != "idle") or 1.0
    table = _table("phase", "ms a step", "share")
    for name, ms in profile.phases_ms.items():
        what = "of these, no operator runs" if name == "idle" else name
        table.add_row(what, f"{ms:.2f}", f"{ms / whole:.0%}")
    console.print(table)
    if profile.device_busy is not None:
        console.print(f"The device is busy {profile.device_busy:.0%} of the time.")
    _rows("operator, time in itself", profile.operators, console)
    _rows("kernel", profile.kernels, console)
    _rows("copy", profile.copies, console)
    _rows("wait for the device", profile.waits, console)
    if profile.modules:
        table = _table("module", "forward ms", "backward ms", "calls a step")
        for row in profile.modules[:_FEW]:
            more = f"{row.more_ms:.2f}"
            table.add_row(printable(row.name), f"{row.ms:.2f}", more, f"{row.calls:.0f}")
        console.print(table)
    if profile.gaps:
        what = "operator" if profile.device_busy is None else "kernel"
        console.print(f"Longest times without any {what}:")
    for gap in profile.gaps:
        during = f": {gap.during}" if gap.during else ""
        console.print(
            printable(f"  {gap.ms:.2f} ms, {gap.after_ms:.1f} ms after the start{during}")
        )


def _rows(what: str, rows: Sequence[Row], console: Console) -> None:
    shown = [row for row in rows[:_FEW] if row.ms >= _WORTH_MS]
    if not shown:
        return
    table = _table(what, "ms a step", "calls a step", "most of it in")
    for row in shown:
        table.add_row(
            printable(row.name), f"{row.ms:.2f}", f"{row.calls:.4g}", printable(row.where)
        )
    console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name == "most of it in" else "right")
    return table
