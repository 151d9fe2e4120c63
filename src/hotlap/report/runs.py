"""`hotlap runs` as text in a terminal: the table of runs, and two runs side by side."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hotlap.report.printable import printable
from hotlap.track.comparing import PARTS, UNREADABLE, Comparison, TwoValues

_ENDINGS = {"evaluation/loss": "held-out", "epoch/loss": "epoch", "step/loss": "step"}
"""What is shown of a run in a list, the first of these that it has, and what it is called."""
_WHOLE = ("state", "steps", "time")
"""Columns of a list that keep their width, however narrow the terminal is."""
_BYTES = ("_bytes", "_bytes_per_s")
_LABELS = {
    "task": "task (what is learned)",
    "plan": "plan (how it is executed)",
    "host": "host",
    "versions": "versions",
    "code": "code",
}


def show_list(console: Console, rows: Sequence[Mapping[str, Any]], root: Path) -> None:
    """Print a line for each run.

    Args:
        console: where to.
        rows: the `summary` of each, in the order in which they are shown.
        root: the folder that they were found in.
    """
    table = Table(box=None, pad_edge=False)
    for label in ("run", "state", "began", "steps", "time", "last loss", "found", "of"):
        # Of what is too wide, a name is folded, and texts of two words take two lines.
        table.add_column(label, no_wrap=label in _WHOLE, overflow="fold")
    for row in rows:
        folder = Path(row["folder"])
        name = folder.relative_to(root) if folder != root else folder
        is_read = row["state"] != UNREADABLE
        loss = next((each for each in _ENDINGS if each in row["last"]), None)
        table.add_row(
            printable(str(name)),
            row["state"],
            row["began"][:16].replace("T", " "),
            f"{row['steps']:,}",
            _as_time(row["seconds"]),
            "" if loss is None else f"{float(row['last'][loss]):.4g} {_ENDINGS[loss]}",
            found_text(row["findings"]),
            printable(Path(row["recipe"] or "").name if is_read else row["error"]),
        )
    console.print(table)


def found_text(findings: Mapping[str, Mapping[str, Any]]) -> str:
    """Return in few words what a run's folder keeps."""
    words = []
    for kind, figures in findings.items():
        more = ""
        if kind == "tuning" and figures["outcome"] == "gain":
            more = f" {figures['speedup']:.2f}x" if figures["speedup"] else ""
        elif kind == "verdict":
            more = f" {printable(str(figures['tier']))}"
        words.append(f"{kind}{more}")
    return ", ".join(words)


def show_comparison(console: Console, compared: Comparison) -> None:
    """Print what two runs differ in, and their last values."""
    names = [printable(str(run.folder)) for run in (compared.first, compared.second)]
    console.print(f"A: {names[0]}\nB: {names[1]}")
    for part in PARTS:
        rows = [each for each in compared.differences if each.part == part]
        console.print()
        if not rows:
            console.print(f"{_LABELS[part]}: {compared.alike[part]}", style="bold")
            continue
        table = Table(_LABELS[part], "A", "B", box=None)
        for row in rows:
            table.add_row(printable(row.name), _shown(row.first), _shown(row.second))
        console.print(table)
    console.print()
    console.print(_values("last value", compared.values))
    if compared.system:
        console.print()
        console.print(_values("mean of a system metric", compared.system))
    if compared.findings:
        console.print()
        table = Table("found out", "A", "B", box=None)
        for each in compared.findings:
            cells = (_figure(each.name, value) for value in (each.first, each.second))
            table.add_row(f"{each.part}: {each.name.replace('_', ' ')}", *cells)
        console.print(table)


def _values(label: str, rows: Sequence[TwoValues]) -> Table:
    table = Table(label, "A", "B", "B - A", box=None)
    for each in rows:
        both = each.first is not None and each.second is not None
        change = f"{(each.second or 0) - (each.first or 0):+.4g}" if both else ""
        if each.name.endswith(_BYTES) and both:
            change = _in_mib((each.second or 0) - (each.first or 0), "+")
        cells = (_number(each.name, value) for value in (each.first, each.second))
        table.add_row(printable(each.name), *cells, change)
    return table


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return _in_mib(value) if name.endswith(_BYTES) else f"{value:.6g}"


def _figure(name: str, value: Any) -> str:
    return _number(name, value) if isinstance(value, int | float) else _shown(value)


def _in_mib(value: float, sign: str = "") -> str:
    return f"{value / 2**20:{sign},.1f} MiB"


def _shown(value: Any) -> str:
    return "-" if value is None else printable(str(value))


def _as_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
