"""Memory whose rows are found fast, and what is left of it."""

import gc
import re
from pathlib import Path

import pytest
import torch

from hotlap.feed.memory import place
from hotlap.feed.memory.pages import empty_rows
from hotlap.feed.memory.resident import ResidentRows

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


def test_a_data_set_is_given_up_when_the_run_itself_needs_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = 1 << 40
    monkeypatch.setattr(place, "available_bytes", lambda: left)
    monkeypatch.setattr(place, "_LOOK_EVERY", 1)
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(16, 4))
    rows = ResidentRows(data, 1 << 20)

    def read(indices: list[int]) -> torch.Tensor:
        return torch.stack([data[i][0] for i in indices])

    fetch = rows.bind(data, read)
    fetch([0, 1, 2, 3])
    assert rows.refused is None and rows.bytes == 256
    left = 1 << 20
    assert fetch([4, 5]).tolist() == read([4, 5]).tolist()
    assert rows.refused is not None and rows.bytes == 0
    assert "1 MiB of memory are available" in rows.refused


def test_samples_read_in_one_go_take_few_bytes_beside_those_that_are_held() -> None:
    assert place.samples_per_read(None, 256) == 1
    assert place.samples_per_read([torch.empty(3, 784), torch.empty(3)], 256) == 256
    assert place.samples_per_read([torch.empty(3, 2**20)], 256) == 4
    assert place.samples_per_read([torch.empty(3, 2**23)], 256) == 1
