"""Small files in the user's cache: each is written as a whole, and none is needed."""

import logging
import os
import tempfile
from pathlib import Path

log = logging.getLogger("hotlap")


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/hotlap`, or `~/.cache/hotlap`; it may not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root, "hotlap")


def write_whole(path: Path, text: str) -> None:
    """Write a file, all of it or nothing; where that is not possible, log why.

    Two commands may write at once: one of them wins as a whole.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                os.unlink(file.name)
                raise
        os.replace(file.name, path)
    except OSError as error:
        log.info("%s is not kept: %s", path.name, error)
