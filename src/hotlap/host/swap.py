"""How much is swapped, and how fast. Source: the kernel's filesystems/proc.rst, vmstat."""

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_S = 0.1


class Swap(NamedTuple):
    """Swap of the machine; zeros where the system does not say."""

    total_bytes: int
    used_bytes: int
    bytes_per_s: float
    """Read from it and written to it while this was asked."""


def swap(proc: Path = PROC, *, sample_s: float = _SAMPLE_S) -> Swap:
    """Return how much swap there is, is used, and is read and written now.

    Args:
        proc: folder with `meminfo` and `vmstat`.
        sample_s: seconds between two looks.
    """
    table = _table(proc / "meminfo")
    total = table.get("SwapTotal", 0) * 1024
    used = total - table.get("SwapFree", 0) * 1024
    if total <= 0:
        return Swap(0, 0, 0.0)
    before, start = _swapped_pages(proc), time.perf_counter()
    time.sleep(sample_s)
    pages, seconds = _swapped_pages(proc) - before, time.perf_counter() - start
    return Swap(total, max(0, used), max(0, pages) * _PAGE / seconds)


def _swapped_pages(proc: Path) -> int:
    table = _table(proc / "vmstat")
    return table.get("pswpin", 0) + table.get("pswpout", 0)


def _table(path: Path) -> dict[str, int]:
    try:
        text = path.read_text()
    except OSError:
        return {}
    return {name: int(value) for name, value in re.findall(r"^(\w+):? +(\d+)", text, re.MULTILINE)}
