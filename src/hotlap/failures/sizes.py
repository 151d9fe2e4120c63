"""Parses amounts of memory, such as `2.50 GiB`, in error messages, and writes them so."""

import re

_BYTES = {"": 1, "bytes": 1, "B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_BYTES |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
SIZE = r"([\d.]+)\s*([KMGT]i?B|bytes|B)\b"
"""Number and unit of an amount."""


def find_size(pattern: str, text: str) -> float | None:
    """Return the bytes that stand where a pattern says, None if it is not found.

    Args:
        pattern: a regular expression with two groups, the number's and the unit's, see `SIZE`.
        text: what is looked at.
    """
    found = re.search(pattern, text)
    return None if found is None else float(found[1]) * _BYTES[found[2]]


def in_words(size: float) -> str:
    """Return an amount as torch writes it."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _BYTES[unit]:
            return f"{size / _BYTES[unit]:.2f} {unit}"
    return f"{size:.0f} bytes"
