"""The temporary folder, with a lock, in which a parent and its trials exchange files."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "hotlap-lab-"
_LOCK = "owner"
_YOUNG_S = 60.0
"""In which a folder may still be without its lock."""


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Give a new folder while entered, and remove what a hotlap that was killed has left.

    Its lock says that the owner lives, also to a hotlap in another container, for which process
    IDs say nothing.

    Raises:
        OSError: nowhere can a folder for temporary files be made.
    """
    _remove_stale()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with open(path / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_stale() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # It may be another user's, or go away meanwhile.
        with contextlib.suppress(OSError):
            if _is_stale(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_stale(path: Path) -> bool:
    try:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - path.stat().st_mtime > _YOUNG_S
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
