"""The folder of hotlap's files in the user's cache; writes one, and only logs where it cannot."""

import logging
import os
from pathlib import Path

from hotlap.host.whole_file import write_whole

log = logging.getLogger("hotlap")


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/hotlap`, or `~/.cache/hotlap`; it may not exist."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root, "hotlap")


def write_cached(path: Path, text: str) -> None:
    """Write a file of the cache; where that is not possible, log why."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        log.info("%s is not kept: %s", path.name, error)
