"""Mount points and folders that a copy-on-write view has to cover."""

import os
from collections.abc import Mapping
from functools import lru_cache
from heapq import heappop, heappush
from pathlib import Path

_LEFT_ALONE = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"
_SCAN_DEPTH = 3
_SCAN_LIMIT = 5000
"""Folders that are looked at for one's own; some 25 us each."""


def is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def mount_points() -> list[str]:
    """Return the mount points that a trial might write to, outer ones first."""
    found = set()
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        # Spaces and the like are written as three octal digits.
        raw = line.split()[4].decode("unicode_escape").encode("latin-1")
        found.add(os.fsdecode(raw))
    kept = {path for path in found if not any(is_within(path, left) for left in _LEFT_ALONE)}
    below_shm = {path for path in found if is_within(path, _SHARED_MEMORY)}
    return sorted((kept | below_shm) - {"/"}, key=lambda path: (len(path), path))


def own_folders(uid: int, cwd: str, env: Mapping[str, str]) -> list[str]:
    """Return the folders that need an overlay of their own, outer ones first; none for root.

    In a user namespace only one's own files have an owner. To write below a folder of another's,
    overlayfs would have to copy that folder up with its owner, and gives EOVERFLOW.
    """
    if uid == 0:
        return []
    found = set(_writable_below_others(uid))
    for path in (cwd, env.get("HOME", ""), env.get("TMPDIR", "/tmp")):
        real = os.path.realpath(path) if path else "/"
        while real != "/" and os.access(real, os.W_OK):
            above = os.path.dirname(real)
            # As far up as everything on the way can be copied up.
            if not (_is_mapped(os.stat(real)) and os.access(above, os.W_OK)):
                found.add(real)
                break
            real = above
    return sorted(found, key=lambda path: (len(path), path))


@lru_cache(maxsize=2)
def _writable_below_others(uid: int) -> tuple[str, ...]:
    """Return the topmost folders that a user may write to, as far as a quick look finds them."""
    del uid  # whoever this process is; it is there for the cache
    # Below a folder that anybody may write to first: there are the folders of several users.
    queue, looked_at, found = [(True, -1, "/")], 0, []
    while queue and looked_at < _SCAN_LIMIT:
        is_private, depth, folder = heappop(queue)
        looked_at += 1
        is_writable = os.access(folder, os.W_OK)
        if is_writable:
            found.append(folder)
        if depth == _SCAN_DEPTH or not os.access(folder, os.R_OK):
            continue
        with os.scandir(folder) as entries:
            folders = [each for each in entries if each.is_dir(follow_symlinks=False)]
        for each in folders:
            # One's own folder in a folder that has an overlay is copied up like any other.
            if each.path not in _LEFT_ALONE and not (is_writable and _is_mapped(each.stat())):
                heappush(queue, (is_private and not is_writable, depth + 1, each.path))
    return tuple(found)


def _is_mapped(info: os.stat_result) -> bool:
    return (info.st_uid, info.st_gid) == (os.geteuid(), os.getegid())
