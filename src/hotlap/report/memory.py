"""`hotlap diagnose --memory` as text in a terminal, and its timeline as one SVG file."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from hotlap.diagnosis.memory import MemoryDiagnosis
from hotlap.report.autocast import autocast_line
from hotlap.report.page.memory_chart import draw_memory
from hotlap.report.page.standalone import standalone
from hotlap.report.printable import printable
from hotlap.rules.memory.record import size
from hotlap.trace.memory_schema import KINDS, MemoryTrace
from hotlap.trace.memory_timeline import timeline_of

_BAR = 40
_LINES = 10
_WIDTH = 1000
"""Pixels of the picture."""


def page(diagnosis: MemoryDiagnosis, console: Console) -> None:
    """Print the peak by kind, what is alive at it, and what takes memory without need."""
    trace, peak = diagnosis.trace, diagnosis.trace.peak
    console.print(f"\n{printable(diagnosis.script)}")
    console.print(
        f"Tensors take {size(peak.bytes)} at the peak, in the phase `{peak.phase}` of step "
        f"{peak.step} ({trace.steps} steps were observed)."
    )
    table = Table(box=None, show_header=False)
    for kind in KINDS:
        share = peak.kinds[kind] / peak.bytes if peak.bytes else 0.0
        if peak.kinds[kind]:
            bar = "#" * round(share * _BAR)
            table.add_row(kind, f"{size(peak.kinds[kind]):>12}", f"{share:5.1%}", bar)
    console.print(table)
    lines = Table(title="Alive at the peak", title_justify="left", box=None, show_header=False)
    for row in diagnosis.at_peak()[:_LINES]:
        outside = "(before the first step)" if row.is_older else "(outside your code)"
        where = printable(row.where) or outside
        lines.add_row(f"{size(row.bytes):>12}", row.kind, where, f"{row.count} tensors")
    console.print()
    console.print(lines)
    if trace.resident:
        console.print(
            f"\nResident memory of the process: {size(trace.resident[0])} after the first step, "
            f"{size(trace.resident[-1])} after the last."
        )
    _device(trace, console)
    _findings(diagnosis, console)
    if diagnosis.autocast is not None:
        console.print(f"\n{printable(autocast_line(diagnosis.autocast))}")
    for note in trace.notes:
        console.print(f"Note: {printable(note)}.")
    if diagnosis.unprotected:
        console.print(
            "Trials could still have changed: " + printable("; ".join(diagnosis.unprotected))
        )


def _device(trace: MemoryTrace, console: Console) -> None:
    """Print what the device's allocator counted beside the tensors that were seen."""
    peak = trace.device_peak
    if peak is None:
        return
    unseen = peak.allocated_bytes - trace.peak.bytes
    console.print(
        f"\nPyTorch's CUDA allocator: {size(peak.allocated_bytes)} allocated at its peak, "
        f"{size(peak.reserved_bytes)} reserved."
    )
    if unseen >= 0:
        console.print(
            f"{size(unseen)} of it are in no tensor that was seen: what operators use inside, "
            "workspaces of cuBLAS and cuDNN, and sizes that were rounded up."
        )
    else:
        console.print(
            f"That is {size(-unseen)} less than the tensors that were seen: some of them are on "
            "another device, or the allocator's peak could not be reset."
        )


def _findings(diagnosis: MemoryDiagnosis, console: Console) -> None:
    if not diagnosis.findings:
        console.print("\nNo rule applies: nothing was found that takes memory without need.")
    for number, each in enumerate(diagnosis.findings, 1):
        per = " a step" if each.grows else ""
        console.print(
            f"\n{number}. {each.rule} at {printable(each.where)}: {size(each.cost_bytes)}{per}"
        )
        console.print(f"   {printable(each.evidence)}.")
        console.print(f"   Remedy: {printable(each.remedy)}.")


def write_svg(trace: MemoryTrace, path: Path) -> None:
    """Write the memory of the observed steps over time, stacked by kind.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(standalone(draw_memory(timeline_of(trace), _WIDTH)), encoding="utf-8")
