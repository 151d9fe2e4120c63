"""`MetricsFile`: appends whole lines to a run's `metrics.jsonl`, which a crash leaves readable."""

import errno
import fcntl
import os
import time
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.host.own_descriptors import disown, is_own, own
from hotlap.track.records import Record

METRICS = "metrics.jsonl"
_CHUNK = 1 << 16
_PATIENCE_S = 3.0
"""Until a process that was killed has let go of the file: it frees its memory first."""
_LOOK_S = 0.05
_OPEN = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class MetricsFile:
    """The file of a run that this process records.

    Args:
        folder: the run's.
        patience_s: how long to wait for a process that is just ending.

    Attributes:
        end: bytes of whole lines in it.

    Raises:
        UsageError: another process appends to it.
        OSError: it cannot be opened.
    """

    def __init__(self, folder: Path, patience_s: float = _PATIENCE_S) -> None:
        self.path = folder / METRICS
        self._descriptor, self._pid = os.open(self.path, _OPEN, 0o666), os.getpid()
        own(self._descriptor)
        try:
            self._lock(patience_s)
            self.end = _end_of_lines(self._descriptor)
            # What a process that was killed had not written to its end.
            os.ftruncate(self._descriptor, self.end)
        except BaseException:
            disown(self._descriptor)
            os.close(self._descriptor)
            raise

    def append(self, lines: str) -> None:
        """Append whole lines.

        Raises:
            OSError: they could not be written; the file is as it was before.
        """
        if not self._is_here:
            raise OSError(errno.EBADF, "the process that opened the file writes into it")
        content = memoryview(lines.encode())
        try:
            while content:
                content = content[os.write(self._descriptor, content) :]
        except OSError:
            os.ftruncate(self._descriptor, self.end)
            raise
        self.end += len(lines.encode())

    def close(self) -> None:
        """Let other processes append; a second call does nothing."""
        if not self._is_here:
            return
        flock(self._descriptor, fcntl.LOCK_UN)
        disown(self._descriptor)
        os.close(self._descriptor)

    @property
    def _is_here(self) -> bool:
        """False once it is closed, and in a forked child, whose descriptor may be another file."""
        return self._pid == os.getpid() and is_own(self._descriptor)

    def _lock(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        while not flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > until:
                raise UsageError(
                    f"'{self.path}' is in use: another run writes to it. Wait until that run has "
                    "ended, or choose another folder with --run-dir."
                )
            time.sleep(_LOOK_S)


def flock(descriptor: int, flags: int) -> bool:
    """Change the kernel's lock on a file; return False where another process has it."""
    try:
        fcntl.flock(descriptor, flags)
    except BlockingIOError:
        return False
    except OSError:
        # A file system without locks.
        return True
    return True


def _end_of_lines(descriptor: int) -> int:
    """Return the offset after the last line break, 0 if there is none."""
    end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - _CHUNK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def read_records(path: Path, offset: int = 0) -> tuple[list[Record], int, int]:
    """Return the records in a file's whole lines from an offset on.

    Args:
        path: the file; one that does not exist holds no record.
        offset: of a line.

    Returns:
        The records, the offset after the last whole line, and the number of lines that hold no
        record.
    """
    try:
        with path.open("rb") as stream:
            stream.seek(offset)
            content = stream.read()
    except FileNotFoundError:
        return [], offset, 0
    whole = content[: content.rfind(b"\n") + 1]
    parsed = [Record.parse(line) for line in whole.splitlines()]
    records = [each for each in parsed if each is not None]
    return records, offset + len(whole), len(parsed) - len(records)
