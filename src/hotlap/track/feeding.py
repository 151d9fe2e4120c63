"""Feeds one tracker from a run's `metrics.jsonl`, in a process of its own: `python -m` runs it.

Standard input is the run: a line says how it has ended, and its end without one that the training's
process was killed. What is said on standard output is JSON, a line each.
"""

import json
import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from hotlap.track.metrics_file import METRICS, read_records
from hotlap.track.records import MEASURED, Record
from hotlap.track.run_file import KILLED, RunInfo
from hotlap.track.tracker import TrackedRun, config_of, make_tracker, short_name

_LOOK_S = 0.5
_SIGN_S = 1.0
"""Seconds after which a tracker that takes many records gives a sign."""
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
        run = TrackedRun(folder, files, folder.resolve().name, resumed_step)
        self._tracker = make_tracker(name, run)

    def run(self, stream: TextIO) -> None:
        """Follow the run to its end."""
        info = RunInfo.read(self._folder) or RunInfo()
        self._tracker.begin(config_of(info))
        self._say(BEGUN)
        state = None
        while state is None:
            if select.select([stream], [], [], _LOOK_S)[0]:
                # Everything was written before the run said so.
                state = stream.readline().strip() or KILLED
            self._hand_on()
        self._tracker.end(state)

    def _hand_on(self) -> None:
        records, offset, _ = read_records(self._folder / METRICS, self._offset)
        for record in records:
            self._log(record)
            if time.monotonic() - self._told_at > _SIGN_S:
                self._say(TAKEN, offset=self._offset)
        flush = getattr(self._tracker, "flush", None)
        if records and flush is not None:
            flush()
        if offset != self._offset:
            self._offset = offset
            self._say(TAKEN, offset=offset)

    def _say(self, kind: str, **more: Any) -> None:
        self._told_at = time.monotonic()
        self._tell(kind, **more)

    def _log(self, record: Record) -> None:
        if record.kind in MEASURED and record.values:
            values = {f"{record.kind}/{name}": value for name, value in record.values.items()}
            self._tracker.log(record.step, values)


def main(arguments: list[str]) -> int:
    """Follow a run; return the exit code.

    Args:
        arguments: name of the tracker, the run's folder, offset, and the step that the run resumes
            from, or `-`.
    """
    # What the tracker's package prints must not be taken for what is said here.
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(kind: str, **more: Any) -> None:
        said.write(json.dumps({"kind": kind, **more}) + "\n")
        said.flush()

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
