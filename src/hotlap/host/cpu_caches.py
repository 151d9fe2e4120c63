"""Bytes of the CPU's largest caches. Source: the kernel's ABI/testing/sysfs-devices-system-cpu."""

import re
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def cache_bytes(cpus: Path = CPUS) -> int | None:
    """Return the bytes of all caches of the largest level together, None if not known.

    Args:
        cpus: folder with a folder `cpu0` and so on.
    """
    levels: dict[int, dict[str, int]] = {}
    for cache in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = _read(cache / "level"), re.fullmatch(r"(\d+)([KMG]?)", _read(cache / "size"))
        if level.isdecimal() and size is not None:
            # Cores that share a cache name the same ones.
            shared = _read(cache / "shared_cpu_list") or str(cache)
            levels.setdefault(int(level), {})[shared] = int(size[1]) * _UNITS[size[2]]
    return sum(levels[max(levels)].values()) if levels else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
