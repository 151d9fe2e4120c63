"""`hotlap train --estimate` in a terminal: a table of peak memory by kind; bytes in words."""

from typing import Any

from rich.console import Console
from rich.table import Table

from hotlap.report.printable import printable

_COLUMNS = {
    "weights": ("parameters", "masters"),
    "grads": ("gradients",),
    "state": ("optimizer",),
    "acts": ("activations",),
    "other": ("temporaries", "batches"),
}
"""Heading -> kinds, see `hotlap.engine.memory.ledger.KINDS`."""


def page(found: Any, console: Console) -> None:
    """Print an estimate."""
    verdict = "fits" if found.fits else "does NOT fit"
    console.print(
        f"peak memory {size(found.needed_bytes)}, steps of {found.batch} samples on "
        f"{found.device}: {verdict} into {size(found.memory_bytes)}"
    )
    if found.data_bytes:
        is_beside = found.device == "cpu" or found.data_on_device
        where = "of these" if is_beside else "in addition, in the host's memory,"
        console.print(f"{where} {size(found.data_bytes)} for samples that `resident` keeps")
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("MiB at the peak")
    for name in (*_COLUMNS, "peak", "batch"):
        table.add_column(name, justify="right")
    refused: dict[str, list[str]] = {}
    for row in (found.chosen, *found.rows):
        if row.peak is None:
            refused.setdefault(row.why_not, []).append(row.name)
            continue
        sizes = [sum(row.peak.kinds[kind] for kind in kinds) for kinds in _COLUMNS.values()]
        most = "-" if row.largest_batch is None else f"{row.largest_batch:,}"
        table.add_row(row.name, *(_mib(count) for count in (*sizes, row.peak.bytes)), most)
    console.print(table)
    most = found.chosen.peak.most
    each = ", ".join(f"{kind} {size(count)}" for kind, count in most.items() if count)
    console.print(f"own peak of each, as planned: {each}")
    if found.held is not None:
        held = found.held
        console.print(
            f"of {found.ranks} ranks each holds between steps at most {size(held.total)}: "
            f"parameters {size(held.parameters)}, gradients {size(held.gradients)}, optimizer "
            f"{size(held.optimizer)}; the peaks above are those of one device"
        )
    if found.chosen.largest_batch is not None:
        console.print("batch: the largest batch size that fits, approximately")
    for reason, names in refused.items():
        console.print(f"refused: {printable(reason)} ({'; '.join(names)})")
    for row in found.techniques:
        if row["state"] == "refused":
            console.print(f"{row['name']} refused: {printable(row['why'])}")
    for note in found.notes:
        console.print(printable(note))


def _mib(count: int) -> str:
    value = count / 2**20
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(count: int) -> str:
    """Return bytes as people read them.

    >>> size(1536 * 2**20)
    '1.50 GiB'
    """
    if count == 0:
        return "0"
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            value = count / factor
            return f"{value:.2f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    return f"{count} B"
