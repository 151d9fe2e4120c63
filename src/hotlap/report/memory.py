"""The page of `hotlap diagnose --memory`, and its timeline as one SVG file."""

from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hotlap.diagnosis.memory import MemoryDiagnosis
from hotlap.report.autocast import autocast_line
from hotlap.report.printable import printable
from hotlap.rules.memory.record import size
from hotlap.trace.memory_schema import KINDS, MemoryTrace

_BAR = 40
_LINES = 10
_COLORS = {
    "other": "#999999",
    "parameters": "#0072B2",
    "optimizer": "#56B4E9",
    "gradients": "#009E73",
    "batches": "#F0E442",
    "retained": "#D55E00",
    "activations": "#E69F00",
    "temporaries": "#CC79A7",
}
"""The colours of Okabe and Ito, which people with any colour vision can tell apart; from the
bottom of the picture to its top."""
_WIDTH, _HEIGHT, _LEFT, _TOP = 960, 360, 80, 50
_COLUMNS = 960


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
    path.write_text(draw(trace))


def draw(trace: MemoryTrace) -> str:
    """Return the timeline as SVG: bytes over the allocations and frees, in order, by kind."""
    columns = _columns(trace)
    count = max(1, len(trace.events))
    top = trace.peak.bytes * 1.08 or 1.0
    unit, name = (
        (2**30, "GiB") if top >= 2**30 else (2**20, "MiB") if top >= 2**20 else (1024, "KiB")
    )

    def x(event: float) -> float:
        return _LEFT + event / count * _WIDTH

    def y(amount: float) -> float:
        return _TOP + _HEIGHT * (1 - amount / top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" '
        f'height="{_TOP + _HEIGHT + 100}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    floor = [0] * len(columns)
    for kind, color in _COLORS.items():
        ceiling = [low + kinds[kind] for low, (_, kinds) in zip(floor, columns, strict=True)]
        if ceiling != floor:
            events = [event for event, _ in columns]
            up = [f"{x(e):.1f},{y(v):.1f}" for e, v in zip(events, ceiling, strict=True)]
            down = [f"{x(e):.1f},{y(v):.1f}" for e, v in zip(events, floor, strict=True)]
            points = " ".join([*up, *reversed(down)])
            parts.append(
                f'<polygon points="{points}" fill="{color}"><title>{kind}</title></polygon>'
            )
        floor = ceiling
    for tick in range(6):
        amount = top * tick / 5
        parts.append(
            f'<line x1="{_LEFT - 5}" x2="{_LEFT}" y1="{y(amount):.1f}" y2="{y(amount):.1f}" '
            f'stroke="black"/><text x="{_LEFT - 8}" y="{y(amount) + 4:.1f}" text-anchor="end">'
            f"{amount / unit:.3g}</text>"
        )
    bottom, begin = _TOP + _HEIGHT, 0
    for step, end in enumerate(trace.step_ends, 1):
        parts.append(
            f'<line x1="{x(end):.1f}" x2="{x(end):.1f}" y1="{_TOP}" y2="{bottom + 5}" '
            'stroke="black" stroke-opacity="0.35" stroke-dasharray="2 3"/>'
            f'<text x="{x((begin + end) / 2):.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{step}</text>"
        )
        begin = end
    parts += _words(trace, name, x(trace.peak.at), y(trace.peak.bytes))
    return "\n".join([*parts, "</svg>\n"])


def _words(trace: MemoryTrace, unit: str, peak_x: float, peak_y: float) -> list[str]:
    bottom, peak = _TOP + _HEIGHT, trace.peak
    middle = _TOP + _HEIGHT / 2
    anchor = "end" if peak_x > _LEFT + _WIDTH / 2 else "start"
    label = f"peak: {size(peak.bytes)}, step {peak.step}, {peak.phase}"
    parts = [
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _WIDTH}" fill="none" stroke="black"/>',
        f'<circle cx="{peak_x:.1f}" cy="{peak_y:.1f}" r="4" fill="black"/>',
        f'<text x="{peak_x:.1f}" y="{peak_y - 8:.1f}" text-anchor="{anchor}">'
        f"{escape(label)}</text>",
        f'<text x="{_LEFT + _WIDTH / 2}" y="{bottom + 40}" text-anchor="middle">step (allocations '
        "and frees in order)</text>",
        f'<text transform="translate(22 {middle}) rotate(-90)" text-anchor="middle">memory of '
        f"tensors ({unit})</text>",
        f'<text x="{_LEFT}" y="22" font-size="15">Memory of tensors by kind, {trace.device}</text>',
    ]
    for place, (kind, color) in enumerate(_COLORS.items()):
        left = _LEFT + place * 118
        parts.append(
            f'<rect x="{left}" y="{bottom + 62}" width="14" height="14" fill="{color}" '
            f'stroke="black" stroke-width="0.5"/>'
            f'<text x="{left + 20}" y="{bottom + 74}">{kind}</text>'
        )
    return parts


def _columns(trace: MemoryTrace) -> list[tuple[int, dict[str, int]]]:
    """Return (event, kind -> bytes) of each column: the moment at which most was alive in it."""
    width = max(1.0, len(trace.events) / _COLUMNS)
    kinds = dict.fromkeys(KINDS, 0)
    found: dict[int, tuple[int, int, dict[str, int]]] = {}
    alive = 0
    for event, (number, change) in enumerate(trace.events):
        kinds[trace.blocks[number].kind] += change
        alive += change
        column = int(event / width)
        if column not in found or alive > found[column][0]:
            found[column] = (alive, event, dict(kinds))
    return [(event, row) for _, event, row in found.values()]
