"""Whose code is it?"""

import os
import sysconfig
from functools import lru_cache

_HOTLAP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    {
        os.path.realpath(path)
        for key in ("stdlib", "platstdlib", "purelib", "platlib")
        if (path := sysconfig.get_path(key))
    }
)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """True if the file belongs neither to a library nor to hotlap."""
    if filename.startswith("<"):
        return False
    path = os.path.realpath(filename)
    if path.startswith(_HOTLAP + os.sep) or f"{os.sep}site-packages{os.sep}" in path:
        return False
    return not any(path.startswith(root + os.sep) for root in _LIBRARIES)
