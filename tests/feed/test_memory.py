"""Memory whose rows are found fast."""

import gc
import re
from pathlib import Path

import pytest
import torch

from hotlap.feed.memory import empty_rows

_ROWS = 20_000
_SMAPS = Path("/proc/self/smaps")


def _huge_kib(address: int) -> int | None:
    """Return the KiB in huge pages of the mapping at an address, None without a mapping."""
    inside = False
    for line in _SMAPS.read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    return None


def _grants_huge_pages() -> bool:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return setting.exists() and "[never]" not in setting.read_text()


def test_large_tables_lie_in_huge_pages() -> None:
    if not _grants_huge_pages():
        pytest.skip("this system gives no huge pages")
    rows = empty_rows((_ROWS, 1, 28, 28), torch.float32).fill_(1.0)
    huge = _huge_kib(rows.data_ptr() + rows.nbytes // 2)
    assert huge is not None
    assert huge > 0.8 * rows.nbytes / 1024


def test_tables_of_every_size_and_dtype_are_those_of_torch() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64, torch.int64):
        for shape in ((0, 3), (5,), (3, 2), (_ROWS, 28, 75)):
            rows, usual = empty_rows(shape, dtype), torch.empty(shape, dtype=dtype)
            assert (rows.shape, rows.dtype) == (usual.shape, usual.dtype)
            assert rows.stride() == usual.stride()
            assert rows.data_ptr() % 64 == 0


@pytest.mark.skipif(not _SMAPS.exists(), reason="this system does not say what is mapped")
def test_the_memory_lives_as_long_as_its_rows() -> None:
    rows = empty_rows((_ROWS, 784), torch.float32).fill_(2.0)
    part, inside = rows[-1], rows.data_ptr() + rows.nbytes // 2
    del rows
    gc.collect()
    assert part.sum() == 2 * 784
    del part
    gc.collect()
    assert _huge_kib(inside) is None
