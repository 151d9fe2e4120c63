"""CPU quota, memory limits and out-of-memory kills of this process's control groups (v1 and v2).

A limit of any group on the way up holds, so all of them are asked, as far as they are seen from
here: a container often sees its own group as the root. Source: cgroups(7), the kernel's
admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

import contextlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple

PROC = Path("/proc/self")
_UNLIMITED = 1 << 60
"""A group of version 1 without a memory limit says a number near 2**63."""


class Memory(NamedTuple):
    """What one group with a memory limit says."""

    limit: int
    """Bytes that its processes may hold together."""
    used: int
    """Bytes that they hold, without what is given back on demand."""

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)


def cpu_quota(proc: Path = PROC) -> float | None:
    """Return the cores' worth of time that the groups allow, None without a limit.

    Args:
        proc: folder with `cgroup` and `mountinfo` of a process.
    """
    quotas: list[float] = []
    for folder in folders("cpu", proc):
        words = _read(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdecimal():
            quotas.append(int(words[0]) / int(words[1]))
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period:
            quotas.append(quota / period)
    return min(quotas, default=None)


def memory(proc: Path = PROC) -> list[Memory]:
    """Return what each group with a memory limit says, the innermost first.

    Swap does not count: what is swapped is not held, but reading it back takes its time.

    Args:
        proc: folder with `cgroup` and `mountinfo` of a process.
    """
    found = []
    for folder in folders("memory", proc):
        told = _version_2(folder) or _version_1(folder)
        if told is not None:
            found.append(told)
    return found


def out_of_memory_kills(proc: Path = PROC) -> int:
    """Return how many processes of the groups were killed because a limit was reached."""
    count = 0
    for folder in folders("memory", proc):
        for name in ("memory.events", "memory.oom_control"):
            count += _field(_read(folder / name), "oom_kill")
    return count


def folders(controller: str, proc: Path = PROC) -> list[Path]:
    """Return the folders of a controller's groups, the innermost first."""
    own = dict(_own_paths(controller, _read(proc / "cgroup")))
    found: list[Path] = []
    for line in _read(proc / "mountinfo").splitlines():
        version = _version_of_mount(line, controller)
        if version not in own:
            continue
        root, point = (PurePosixPath(_unescape(word)) for word in line.split()[3:5])
        path, top = own[version], Path(point)
        # A group outside of what is mounted cannot be asked; the mounted one is, as all there is.
        below = path.relative_to(root) if path.is_relative_to(root) else PurePosixPath()
        inner = top / below if ".." not in below.parts else top
        chain = [inner, *inner.parents]
        found += chain[: chain.index(top) + 1]
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def _own_paths(controller: str, text: str) -> list[tuple[int, PurePosixPath]]:
    """Return the version and path of the groups that may have the controller."""
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found.append((2, PurePosixPath(path)))
        elif controller in controllers.split(","):
            found.append((1, PurePosixPath(path)))
    return found


def _version_of_mount(line: str, controller: str) -> int | None:
    """Return 1 or 2 if a line of mountinfo is where the controller's groups are mounted."""
    kind, _, options = line.partition(" - ")[2].partition(" ")
    if kind == "cgroup2":
        return 2
    if kind == "cgroup" and controller in options.split()[-1].split(","):
        return 1
    return None


def _version_2(folder: Path) -> Memory | None:
    # Above `memory.high` processes are held up until they have given memory back.
    limits = [_number(folder / name) for name in ("memory.max", "memory.high")]
    known = [limit for limit in limits if limit is not None]
    if not known:
        return None
    stat = _read(folder / "memory.stat")
    reclaimable = _reclaimable_bytes(stat, "", "file_mapped") + _field(stat, "slab_reclaimable")
    used = _number(folder / "memory.current") or 0
    return Memory(min(known), max(0, used - reclaimable))


def _version_1(folder: Path) -> Memory | None:
    limit, stat = _number(folder / "memory.limit_in_bytes"), _read(folder / "memory.stat")
    if limit is None:
        return None
    # Of the groups above, those that are not seen from here included.
    above = _field(stat, "hierarchical_memory_limit") or limit
    limit = min(limit, above)
    if limit >= _UNLIMITED:
        return None
    used = _number(folder / "memory.usage_in_bytes") or 0
    return Memory(limit, max(0, used - _reclaimable_bytes(stat, "total_", "mapped_file")))


def _reclaimable_bytes(stat: str, prefix: str, mapped: str) -> int:
    """Return the bytes of pages of files that nobody has mapped: they count as used."""
    kept = _field(stat, f"{prefix}inactive_file") + _field(stat, f"{prefix}active_file")
    # Mapped ones, a library's code for one, would be read again and again.
    return max(0, kept - _field(stat, prefix + mapped))


def _field(text: str, name: str) -> int:
    match = re.search(rf"^{name} (\d+)$", text, re.MULTILINE)
    return int(match[1]) if match else 0


def _number(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text.isdecimal() else None


def _unescape(word: str) -> str:
    """Return a path of mountinfo, where spaces and the like are three octal digits."""
    return os.fsdecode(re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1], 8)]), os.fsencode(word)))


def _read(path: Path) -> str:
    """Return a file's text, empty if there is none or it may not be read."""
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
