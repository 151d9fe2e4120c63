"""The caches of the processor, as the kernel lists them."""

from pathlib import Path

import pytest

from hotlap.host.cpu_caches import cache_bytes


def cpu(folder: Path, number: int, *caches: tuple[int, str, str]) -> None:
    for index, (level, size, shared) in enumerate(caches):
        place = folder / f"cpu{number}" / "cache" / f"index{index}"
        place.mkdir(parents=True)
        for name, text in (("level", str(level)), ("size", size), ("shared_cpu_list", shared)):
            (place / name).write_text(f"{text}\n")


@pytest.mark.parametrize(("second", "expected"), [("0-1", 2**25), ("1", 2**26)])
def test_the_largest_level_counts_and_what_cores_share_counts_once(
    second: str, expected: int, tmp_path: Path
) -> None:
    cpu(tmp_path, 0, (1, "32K", "0"), (3, "32768K", "0-1" if second == "0-1" else "0"))
    cpu(tmp_path, 1, (1, "32K", "1"), (3, "32M", second))
    assert cache_bytes(tmp_path) == expected


def test_what_the_kernel_does_not_tell_is_not_known(tmp_path: Path) -> None:
    assert cache_bytes(tmp_path) is None
    cpu(tmp_path, 0, (3, "much", "0"))
    assert cache_bytes(tmp_path) is None
