"""`Writer`: records go into `metrics.jsonl` from a thread of its own, never from the training's."""

import collections
import contextlib
import threading
import time
from collections.abc import Mapping

from hotlap.track.metrics_file import MetricsFile
from hotlap.track.records import MEASURED, STEP, Record

_EVERY_S = 0.5
"""Seconds between two writes: what a process that is killed has not written yet."""
_MOST_WAITING = 1_000_000
"""Records that wait for a disk that takes none; older ones are dropped."""
_CLOSE_S = 10.0
"""Seconds that the end of a run waits for a disk that does not answer."""

_Row = tuple[str, int, int | None, float, Mapping[str, float] | float]
"""The fields of a `Record`; a loss alone stands for its values."""


class Writer:
    """Takes records from any thread, and writes them every half second.

    Args:
        file: what they are appended to; closed by `close`.
        seconds: of the run before this process.

    Attributes:
        problems: what went wrong and the user should know, each said once; taken by who says it.
        step: of the last record that has a step of its own.
    """

    def __init__(self, file: MetricsFile, seconds: float = 0.0) -> None:
        self.file = file
        self.problems: collections.deque[str] = collections.deque()
        self.step = 0
        self._zero = time.monotonic() - seconds
        self._waiting: collections.deque[_Row] = collections.deque(maxlen=_MOST_WAITING)
        self._wakes = threading.Event()
        self._ends = False
        self._writes = threading.Lock()
        self._is_full = self._has_strange = False
        self._thread = threading.Thread(target=self._run, name="hotlap-records", daemon=True)
        self._thread.start()

    def add(self, kind: str, step: int, epoch: int | None, values: Mapping[str, float]) -> None:
        """Take a record; it is written later.

        Args:
            kind: see `Record.kind`.
            step: see `Record.step`.
            epoch: see `Record.epoch`.
            values: not changed afterwards by the caller.
        """
        if kind in MEASURED:
            self.step = step
        # Not yet a `Record`: making one takes the training's thread as long as all the rest.
        self._waiting.append((kind, step, epoch, self.now(), values))

    def add_loss(self, step: int, epoch: int | None, seconds: float, loss: float) -> None:
        """Take the loss of a step, as `add` does, and as soon as possible."""
        self.step = step
        # A tuple of numbers is nothing for the garbage collector, a dict is.
        self._waiting.append((STEP, step, epoch, seconds, loss))

    def now(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._zero

    def write_now(self) -> None:
        """Write what waits: a process that is killed afterwards loses none of it."""
        with self._writes:
            self._append_waiting()

    def close(self) -> None:
        """Write what is left and close the file; a second call does nothing."""
        if self._ends:
            return
        self._ends = True
        self._wakes.set()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            self.problems.append(
                f"the disk did not take the last records of '{self.file.path}' within "
                f"{_CLOSE_S:.0f} s"
            )
            return
        if self._waiting:
            self.problems.append(
                f"{len(self._waiting)} records are lost: until the run ended, they could not be "
                f"written to '{self.file.path}'"
            )
        self.file.close()

    def _run(self) -> None:
        while not self._ends:
            self._wakes.wait(_EVERY_S)
            self.write_now()
        # What came while it wrote.
        self.write_now()

    def _line(self, row: _Row) -> str | None:
        try:
            kind, step, epoch, seconds, values = row
            if not isinstance(values, Mapping):
                values = {"loss": values}
            return Record(kind, step, epoch, seconds, values).line()
        except (TypeError, ValueError) as error:
            if not self._has_strange:
                self.problems.append(
                    f"a value of step {row[1]} could not be recorded, and neither can others like "
                    f"it: {error}"
                )
            self._has_strange = True
            return None

    def _append_waiting(self) -> None:
        rows = []
        with contextlib.suppress(IndexError):
            while True:
                rows.append(self._waiting.popleft())
        if not rows:
            return
        lines = [line for row in rows if (line := self._line(row)) is not None]
        try:
            self.file.append("".join(lines))
        except OSError as error:
            self._waiting.extendleft(reversed(rows))
            if not self._is_full:
                self.problems.append(
                    f"records could not be written to '{self.file.path}' ({error.strerror}); "
                    "training continues, and they are written once there is room"
                )
            self._is_full = True
        else:
            self._is_full = False
