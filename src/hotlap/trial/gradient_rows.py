"""Drawn gradients of a run, a row for each update: one process writes them, another one reads them.

A row is read as soon as it is written, so that both runs can go on at the same time: the one that
reads waits for the other where it is ahead of it.
"""

import struct
import time
from pathlib import Path
from typing import Any

import numpy

_LENGTH = struct.Struct("<q")
_POLL_S = 5e-4
_LONGEST_S = 900.0
"""Seconds to wait for a row at the most; a trial may take as long to answer."""


def _end_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.end")


def end_rows(file: Path) -> None:
    """Say that the run which has written to `file` is over, however it ended."""
    _end_of(file).touch()


def is_begun(file: Path) -> bool:
    """True once the second row has been written: an update has made the optimizer's state."""
    reader = RowReader(file)
    return all(reader.whole_row() is not None for _ in range(2))


class RowWriter:
    """Writes rows, each of which can be read at once.

    Args:
        file: where they are written to; what is there already is removed with the first row.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._mode = file, "wb"

    def write(self, row: numpy.ndarray[Any, Any]) -> None:
        """Write one row, in float32."""
        data = row.astype(numpy.float32, copy=False).tobytes()
        with self._file.open(self._mode) as rows:
            rows.write(_LENGTH.pack(len(data)) + data)
        self._mode = "ab"


class RowReader:
    """Reads the rows of another run, in their order.

    Args:
        file: what its writer was given.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._end = file, _end_of(file)
        self._read = 0
        """Bytes of the rows so far."""
        self._is_over = False

    def next(self) -> numpy.ndarray[Any, Any] | None:
        """Return the next row, float32, shape (n,); None if the other run had no more.

        Raises:
            TimeoutError: the other run has neither written a row nor ended for 15 minutes.
        """
        deadline = time.monotonic() + _LONGEST_S
        while not self._is_over:
            # Asked before it is looked for a row: one may be written in between.
            ended = self._end.exists()
            row = self.whole_row()
            if row is not None:
                return row
            self._is_over = ended
            if time.monotonic() > deadline:
                raise TimeoutError("the run beside this one has taken no update for 15 minutes")
            time.sleep(_POLL_S)
        return None

    def whole_row(self) -> numpy.ndarray[Any, Any] | None:
        """Return the next row if all of it has been written, None if not."""
        if not self._file.exists():
            return None
        with self._file.open("rb") as rows:
            rows.seek(self._read)
            head = rows.read(_LENGTH.size)
            if len(head) < _LENGTH.size:
                return None
            (length,) = _LENGTH.unpack(head)
            data = rows.read(length)
        if len(data) < length:
            return None
        self._read += _LENGTH.size + length
        return numpy.frombuffer(data, dtype=numpy.float32)
