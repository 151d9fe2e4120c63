"""Removes temporary files of writers that have died, and leaves those of live ones."""

import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from hotlap.checkpoint.owner import is_alive, start_time_of

TEMPORARY = ".tmp-"
TRASH = ".trash-"
_OURS = re.compile(r"\.tmp-(?:\d+|latest)-(?P<pid>\d+)(?:-(?P<start>\d+))?-.*", re.ASCII)


def temporary_name(what: str) -> str:
    """Return a name for what this process is about to write."""
    pid = os.getpid()
    return f"{TEMPORARY}{what}-{pid}-{start_time_of(pid) or 0}-{uuid.uuid4().hex}"


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
    pid, start = int(match["pid"]), match["start"]
    return pid != os.getpid() and is_alive(pid, None if start is None else int(start))
