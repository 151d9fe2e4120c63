"""Feeds one tracker from a run's `metrics.jsonl`, in a process of its own: `python -m` runs it.

Standard input is the run: a line says how it has ended, and its end without one that the training's
process was killed. What is said on standard output is JSON, a line each.
"""

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hotlap.track.metrics_file import METRICS, read_records
from hotlap.track.records import BEGAN, MEASURED, RESUMED, SYSTEM, Record
from hotlap.track.run_file import KILLED, RunInfo
from hotlap.track.sent import Sent
from hotlap.track.tracker import TrackedRun, config_of, make_tracker, short_name

_LOOK_S = 0.5
_SIGN_S = 1.0
"""Seconds after which a tracker that takes many records gives a sign."""
_SENT = "sent.json"
BEGUN, TAKEN, ENDED, FAILED = "begun", "taken", "ended", "failed"
"""What is said: `taken` with the offset up to which the tracker has the records."""


def files_of(folder: Path, name: str) -> Path:
    """Return the folder for what a tracker writes, below the run's."""
    return folder / "trackers" / short_name(name)


class Follower:
    """Hands a tracker every record from an offset of the file on.

    Args:
        name: of the tracker.
        folder: the run's.
        offset: of `metrics.jsonl`, of the first line that is handed on.
        resumed_step: see `TrackedRun`.
        tell: says to the training's process how far it is.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        offset: int,
        resumed_step: int | None,
        tell: Callable[..., None],
    ) -> None:
        self._folder, self._offset, self._tell = folder, offset, tell
        self._told_at = time.monotonic()
        files = files_of(folder, name)
        self._info = RunInfo.read(folder) or RunInfo()
        # Before the tracker is made: the process that fed it before may still be ending its run.
        run = TrackedRun(folder, files, folder.resolve().name, resumed_step)
        # A copy of the run's folder is another run to a tracker, which names it by its folder.
        self._sent = Sent(files / _SENT, f"{run.name}, begun {self._info.began}")
        self._resumed_step = resumed_step
        self._has_taken_up = False
        self._tracker = make_tracker(name, run)
        self._hides_later_steps = getattr(self._tracker, "hides_later_steps", False)

    def run(self, stream: TextIO) -> None:
        """Follow the run to its end."""
        with contextlib.closing(self._sent):
            self._follow(stream)

    def _follow(self, stream: TextIO) -> None:
        self._tracker.begin(config_of(self._info))
        self._say(BEGUN)
        state = None
        while state is None:
            if select.select([stream], [], [], _LOOK_S)[0]:
                # Everything was written before the run said so.
                state = stream.readline().strip() or KILLED
            if self._hand_on():
                state = state or KILLED
        self._tracker.end(state)

    def _hand_on(self) -> bool:
        """Hand on what is new; return True if the run was begun again, by another process."""
        records, offset, _ = read_records(self._folder / METRICS, self._offset)
        for record in records:
            if record.kind in (BEGAN, RESUMED):
                if self._has_taken_up and self._is_anothers():
                    self._flush()
                    return True
                self._has_taken_up = True
            self._log(record)
            if time.monotonic() - self._told_at > _SIGN_S:
                self._flush()
                self._say(TAKEN, offset=self._offset)
        if records:
            self._flush()
        if offset != self._offset:
            self._offset = offset
            self._say(TAKEN, offset=offset)
        return False

    def _is_anothers(self) -> bool:
        # What takes a run up writes `run.json` before its first record.
        now = RunInfo.read(self._folder) or self._info
        return (now.began, now.resumed) != (self._info.began, self._info.resumed)

    def _say(self, kind: str, **more: Any) -> None:
        self._told_at = time.monotonic()
        self._tell(kind, **more)

    def _log(self, record: Record) -> None:
        if record.kind not in MEASURED or not record.values:
            return
        if not self._hides_later_steps and self._is_repeated(record):
            return
        values = {f"{record.kind}/{name}": value for name, value in record.values.items()}
        self._tracker.log(record.step, values)
        self._sent.note(record)

    def _is_repeated(self, record: Record) -> bool:
        # What is measured before the first step is done has the step that was resumed from.
        is_later = record.kind == SYSTEM and record.step == self._resumed_step
        return not is_later and not self._sent.is_new(record)

    def _flush(self) -> None:
        flush = getattr(self._tracker, "flush", None)
        if flush is not None:
            flush()
        self._sent.keep()


def main(arguments: list[str]) -> int:
    """Follow a run; return the exit code.

    Args:
        arguments: name of the tracker, the run's folder, offset, and the step that the run resumes
            from, or `-`.
    """
    # What the tracker's package prints must not be taken for what is said here.
    said = os.dup(1)
    os.dup2(2, 1)

    def tell(kind: str, **more: Any) -> None:
        # Nobody listens any more if training was killed; the tracker is still told its end.
        with contextlib.suppress(BrokenPipeError):
            os.write(said, (json.dumps({"kind": kind, **more}) + "\n").encode())

    name, folder, offset, step = arguments
    try:
        follower = Follower(
            name, Path(folder), int(offset), None if step == "-" else int(step), tell
        )
        follower.run(sys.stdin)
    except Exception as error:
        import traceback

        traceback.print_exc()
        tell(FAILED, error=f"{type(error).__name__}: {error}".partition("\n")[0])
        return 1
    tell(ENDED)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
