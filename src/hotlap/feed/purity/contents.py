"""Members of the user's containers, and a digest of those that hold plain values."""

import marshal
import sys
from collections import deque
from itertools import islice
from pathlib import PurePath
from typing import Any


def members_of(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def digest_of(value: Any) -> int | None:
    """Return a digest of plain nested containers, None if something else is in them."""
    if _holds_arrays(value):
        return None
    plain = list(value) if isinstance(value, deque) else value
    try:
        if _holds(PurePath, value):
            plain = _with_paths_as_words(plain)
        # Version 2 writes contents only; later ones also how often an object is referred to.
        return hash(marshal.dumps(plain, 2))
    except (ValueError, RecursionError):
        return None


def _with_paths_as_words(value: Any) -> Any:
    """Return nested lists, tuples and dictionaries in which paths, which never change, are text."""
    if isinstance(value, PurePath):
        return type(value).__name__, str(value)
    if type(value) in (list, tuple):
        return type(value)([_with_paths_as_words(item) for item in value])
    if type(value) is dict:
        return {_with_paths_as_words(k): _with_paths_as_words(v) for k, v in value.items()}
    return value


def _holds_arrays(value: Any) -> bool:
    """True if arrays lie in a container, as far as its first items show: they are not copied."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and _holds(numpy.ndarray, value)


def _holds(kind: type, value: Any, depth: int = 3) -> bool:
    if isinstance(value, kind):
        return True
    if depth == 0 or not isinstance(value, list | tuple | dict | set | frozenset | deque):
        return False
    items = value.values() if isinstance(value, dict) else value
    return any(_holds(kind, item, depth - 1) for item in islice(items, 4))
