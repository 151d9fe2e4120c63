"""`Sent`: the last steps that a tracker has of a run, kept with what the tracker writes."""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

from hotlap.track.metrics_file import flock
from hotlap.track.records import Record

_PATIENCE_S = 20.0
"""Until the process that fed the tracker before has ended: it hands on the last records first."""
_LOOK_S = 0.05


class Sent:
    """What a tracker has of a run, from all processes that have fed it.

    A run that was killed takes steps again when it is resumed. They are repetitions, which a
    tracker would show as second points.

    Args:
        path: of the file; made if it is missing.
        run: which one it is. Of another run in the same folder nothing counts.
        patience_s: how long to wait for the process that fed the tracker before.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, run: str, patience_s: float = _PATIENCE_S) -> None:
        self._run = run
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._wait(patience_s)
        self._before = self._read()
        """Kind of records -> the last step that earlier processes have handed on."""
        self._last = dict(self._before)

    def is_new(self, record: Record) -> bool:
        """True if no earlier process has handed on the record's step."""
        return record.kind not in self._before or record.step > self._before[record.kind]

    def note(self, record: Record) -> None:
        """Take down that the tracker has a record; `keep` writes it."""
        self._last[record.kind] = max(record.step, self._last.get(record.kind, 0))

    def keep(self) -> None:
        """Write what was noted; if that fails, the tracker gets steps twice, but is not lost."""
        content = json.dumps({"run": self._run, "steps": self._last}).encode()
        try:
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
        except OSError as error:
            _say(f"the last step that was handed on could not be written: {error}")

    def close(self) -> None:
        """Let the next process feed the tracker."""
        os.close(self._descriptor)

    def _wait(self, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        while not flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > until:
                _say(
                    "the process that fed this tracker before has not ended; steps may be there "
                    "twice"
                )
                return
            time.sleep(_LOOK_S)

    def _read(self) -> dict[str, int]:
        size = os.fstat(self._descriptor).st_size
        try:
            data = json.loads(os.pread(self._descriptor, size, 0))
            if data["run"] == self._run:
                return {str(kind): int(step) for kind, step in data["steps"].items()}
        except (ValueError, TypeError, KeyError, AttributeError):
            # New, or torn: nothing is known of what was handed on.
            return {}
        return {}


def _say(what: str) -> None:
    # Into the tracker's log.
    print(f"hotlap: {what}.", file=sys.stderr)  # noqa: T201
