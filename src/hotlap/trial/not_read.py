"""What a digest says of parts of a value that could not be read. No torch."""

import re
from collections.abc import Collection, Iterable

from hotlap.trial.protocol import UNREAD

_NOT_READ = re.compile(r"\[not read: (.*?)\]")
"""Stands behind the digest of a value of which a part could not be read."""


def not_read_words(kinds: Collection[str]) -> str:
    """Return what stands behind a digest, nothing without objects that were not read."""
    return f"[not read: {', '.join(sorted(kinds))}]" if kinds else ""


def not_read_in(digests: Iterable[str]) -> set[str]:
    """Return the kinds of objects that some digests say were not read, or why nothing was."""
    found: set[str] = set()
    for each in digests:
        # Behind those of another rank there may be more.
        for kinds in _NOT_READ.findall(each):
            found |= set(kinds.split(", "))
        if UNREAD in each:
            found.add(each.partition(UNREAD)[2])
    return found
