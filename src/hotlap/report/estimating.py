"""What `hotlap train --estimate` prints."""

from typing import Any

from rich.console import Console
from rich.table import Table

_KINDS = ("parameters", "masters", "gradients", "optimizer", "activations", "temporaries", "batches")


def page(found: Any, console: Console) -> None:
    """Print an estimate."""
    verdict = "fits" if found.fits else "does NOT fit"
    console.print(
        f"{size(found.needed_bytes)} at the peak, steps of {found.batch} samples on "
        f"{found.device}: {verdict} into {size(found.memory_bytes)}"
    )
    if found.data_bytes:
        where = "of these" if found.device == "cpu" else "beside it, in the host's memory,"
        console.print(f"{where} {size(found.data_bytes)} for samples that `resident` keeps")
    table = Table(box=None)
    table.add_column("precision")
    table.add_column("recompute")
    for name in (*_KINDS, "peak", "in", "largest batch"):
        table.add_column(name, justify="right")
    for row in (found.chosen, *found.rows):
        if row.peak is None:
            table.add_row(row.precision, row.recompute, f"refused: {row.why_not}")
            continue
        kinds = [size(row.peak.kinds[kind]) for kind in _KINDS]
        largest = "-" if row.largest_batch is None else f"{row.largest_batch:,}"
        peak = size(row.peak.bytes)
        table.add_row(row.precision, row.recompute, *kinds, peak, row.peak.phase, largest)
    console.print(table)
    for row in found.techniques:
        if row["state"] == "refused":
            console.print(f"{row['name']} refused: {row['why']}")
    for note in found.notes:
        console.print(note)


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
