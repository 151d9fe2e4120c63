"""`Journal`: what a search has decided and seen, as lines of JSON that are only appended. No torch.

A line counts once its newline is on the disk. A last line without one was torn when its writer
died; it is ignored, and cut off before the next line is written.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.errors import StorageError, UsageError

_KINDS = ("search", "job", "lease", "result")
"""Of lines: decisions follow from all lines, so none that is not known is left out."""


class Journal:
    """The journal of one search.

    Args:
        path: its file, which `open` makes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> list[dict[str, Any]]:
        """Return the lines that are there, and be ready to append to them.

        Raises:
            UsageError: the file is no journal.
        """
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        records, whole = read(self.path)
        if os.fstat(self._descriptor).st_size > whole:
            os.ftruncate(self._descriptor, whole)
        os.lseek(self._descriptor, 0, os.SEEK_END)
        return records

    def clear(self) -> None:
        """Delete all lines."""
        assert self._descriptor is not None
        os.ftruncate(self._descriptor, 0)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line, and return once it is durable.

        Raises:
            StorageError: it could not be written; what was written before is as it was.
        """
        assert self._descriptor is not None
        line = json.dumps(record, allow_nan=False).encode() + b"\n"
        before = os.lseek(self._descriptor, 0, os.SEEK_END)
        try:
            written = os.write(self._descriptor, line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before)
            raise StorageError(
                f"the search's journal '{self.path}' could not be written: {error}. The results so "
                "far are kept. Free some space, and run this `hotlap search` command again to "
                "continue the search."
            ) from error

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a journal, and how many bytes they take.

    Raises:
        UsageError: a line in the middle is no record.
    """
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    records = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"line {number} of '{path}' is not JSON ({error}), so the search cannot be "
                "continued. Pass another --run-dir to `hotlap search`, or pass it --again to "
                "delete this search and begin a new one."
            ) from error
        if not isinstance(record, dict) or "kind" not in record:
            raise UsageError(
                f"line {number} of '{path}' is not a record of a search, so the search cannot be "
                "continued. Pass another --run-dir to `hotlap search`, or pass it --again to "
                "delete this search and begin a new one."
            )
        if record["kind"] not in _KINDS:
            raise UsageError(
                f"line {number} of '{path}' is of the kind {record['kind']!r}, which this version "
                f"of hotlap does not know, so the search cannot be continued. Expected: "
                f"{', '.join(_KINDS)}. Update hotlap if a newer one wrote it; otherwise pass "
                "another --run-dir to `hotlap search`, or pass it --again to delete this search "
                "and begin a new one."
            )
        records.append(record)
    return records, whole
