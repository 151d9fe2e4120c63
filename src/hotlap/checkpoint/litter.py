"""Removes temporary files of writers that have died, and leaves those of live ones."""

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from hotlap.checkpoint.owner import is_alive, place, start_time_of

TEMPORARY = ".tmp-"
TRASH = ".trash-"
_OURS = re.compile(
    r"\.tmp-(?:\d+|latest)-(?P<pid>\d+)"
    r"(?:-(?P<start>\d+)(?:-(?P<place>[0-9a-f]{8}))?)?-.*",
    re.ASCII,
)
_SILENT_S = 3600.0
"""Seconds without a write after which a writer that cannot be looked for is taken for dead."""


def temporary_name(what: str) -> str:
    """Return a name for what this process is about to write."""
    pid = os.getpid()
    return f"{TEMPORARY}{what}-{pid}-{start_time_of(pid) or 0}-{place()}-{uuid.uuid4().hex}"


def trash_name() -> str:
    """Return a name for what is about to be deleted."""
    return f"{TRASH}{uuid.uuid4().hex}"


def clear_away(root: Path, notice: Callable[[str], None]) -> None:
    """Delete what dead writers have left in a folder of checkpoints.

    Args:
        root: the folder; all names that begin as ours do are ours.
        notice: called, in words, with what cannot be deleted.
    """
    for path in root.iterdir():
        if path.name.startswith(TRASH) or (path.name.startswith(TEMPORARY) and not _lives(path)):
            try:
                delete(path)
            except OSError as error:
                notice(f"'{path}' is left over from another run and cannot be deleted: {error}")


def delete(path: Path) -> None:
    """Delete a file, a folder with all that is in it, or a link and nothing behind it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _lives(path: Path) -> bool:
    """True if another process is still writing that."""
    match = _OURS.fullmatch(path.name)
    if match is None:
        return False
    if match["place"] not in (None, place()):
        # Of another host or container, whose processes are not seen from here.
        return _was_written_lately(path)
    pid, start = int(match["pid"]), match["start"]
    return pid != os.getpid() and is_alive(pid, None if start is None else int(start))


def _was_written_lately(path: Path) -> bool:
    try:
        inside = path.iterdir() if path.is_dir() and not path.is_symlink() else ()
        newest = max(each.lstat().st_mtime for each in (path, *inside))
    except FileNotFoundError:
        # Its writer is at it.
        return True
    return time.time() - newest < _SILENT_S
