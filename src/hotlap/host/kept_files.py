"""The folder of hotlap's files in the user's cache; writes one, and only logs where it cannot."""

import logging
import os
from pathlib import Path

from hotlap.host.whole_file import write_whole

log = logging.getLogger("hotlap")


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/hotlap`, or `~/.cache/hotlap`; it may not exist.

    It cannot exist for a user without a home: nothing is kept then.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    # A relative one is to be ignored. Source: the XDG Base Directory Specification.
    if not os.path.isabs(root):
        root = os.path.expanduser("~/.cache")
    return Path(root if os.path.isabs(root) else os.devnull, "hotlap")


def write_cached(path: Path, text: str) -> None:
    """Write a file of the cache; where that is not possible, log why."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        log.info("%s is not kept: %s", path.name, error)
