"""Whose file it is: the user's, a library's, or hotlap's own."""

import os
import sys
import sysconfig
from functools import lru_cache
from types import ModuleType
from typing import Any

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


@lru_cache(maxsize=4096)
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
    """Return the user's files that this process has imported so far, sorted.

    Those below the working folder are given relative to it: a trial may run on a copy.
    """
    here = os.getcwd() + os.sep
    # What an attribute is asked of may import itself only then.
    files = {vars_of.get("__file__") for vars_of in map(_vars_of, list(sys.modules.values()))}
    paths = {os.path.abspath(file) for file in files if isinstance(file, str) and is_users(file)}
    return sorted(path.removeprefix(here) for path in paths)


def _vars_of(module: Any) -> dict[str, Any]:
    return object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}
