"""Whose file it is: the user's, a library's, or hotlap's own."""

import os
import sys
import sysconfig
from functools import lru_cache

_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Where libraries lie, also those of another Python than this one."""
_HOTLAP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    {
        os.path.realpath(path)
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(key))
    }
)


def is_hotlaps(filename: str) -> bool:
    """True if the file belongs to hotlap."""
    return os.path.realpath(filename).startswith(_HOTLAP + os.sep)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """True if the file belongs neither to a library nor to hotlap."""
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if path.startswith(_HOTLAP + os.sep) or any(f in path for f in _FOLDERS):
        return False
    return not any(path.startswith(root + os.sep) for root in _LIBRARIES)


def imported_files() -> list[str]:
    """Return the user's files that this process has imported so far, sorted."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return sorted(os.path.abspath(file) for file in files if file and is_users(file))
