"""`FollowerProcess`: the process that feeds a tracker, which no run waits for very long."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hotlap.track import follow
from hotlap.track.tracker import short_name

PATIENCE_S = 15.0
"""Seconds that the end of a run waits for a tracker that still takes records."""
_STALLED_S = 60.0
"""Seconds without a sign of a tracker that has records to take, after which that is said."""
_LOG = "log.txt"


class FollowerProcess:
    """One tracker of a run. Whatever it does, the training's process only hears of it.

    Args:
        name: of the tracker, see `check_trackers`.
        folder: the run's.
        offset: of `metrics.jsonl`, of the first record that is the tracker's.
        resumed_step: see `TrackedRun`.
        problem: called, once, with what goes wrong; from a thread.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        offset: int,
        resumed_step: int | None,
        problem: Callable[[str], None],
    ) -> None:
        self.name, self._problem = name, problem
        files = follow.files_of(folder, name)
        files.mkdir(parents=True, exist_ok=True)
        self._log = files.with_name(f"{short_name(name)}-{_LOG}")
        self._heard_at, self._taken, self._is_over = time.monotonic(), offset, False
        self._has_problem = False
        step = "-" if resumed_step is None else str(resumed_step)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", follow.__name__, name, str(folder), str(offset), step],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is the training's, which ends first.
                start_new_session=True,
                env=_environment(),
            )
        self._listener = threading.Thread(
            target=self._listen, name=f"hotlap-tracker-{name}", daemon=True
        )
        self._listener.start()

    def look(self, end: int) -> None:
        """Say so if the tracker has taken nothing for long.

        Args:
            end: bytes of `metrics.jsonl`.
        """
        if self._is_over or end <= self._taken:
            self._heard_at = time.monotonic()
        elif time.monotonic() - self._heard_at > _STALLED_S:
            self._tell(f"has taken no record for {_STALLED_S:.0f} s")

    def end(self, state: str, until: float) -> None:
        """Tell the tracker how the run has ended, and let it take the last records.

        Args:
            state: see `RunInfo.state`.
            until: when it is waited for no longer, on the monotonic clock.
        """
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{state}\n".encode())
            self._process.stdin.close()
        try:
            self._process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._tell("did not end with the run")
            self._process.kill()
            self._process.wait()
        self._listener.join(1)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        is_ended = False
        with self._process.stdout as said_by_it:
            for line in said_by_it:
                self._heard_at = time.monotonic()
                is_ended |= self._hear(line)
        self._is_over = True
        code = self._process.wait()
        if not is_ended:
            self._tell(f"ended with exit code {code}")

    def _hear(self, line: bytes) -> bool:
        """Hear a line of the tracker's process; return whether it has ended well."""
        try:
            said = json.loads(line)
        except ValueError:
            return False
        if said["kind"] == follow.TAKEN:
            self._taken = said["offset"]
        elif said["kind"] == follow.FAILED:
            self._tell(f"failed ({said['error']})")
        return said["kind"] == follow.ENDED

    def _tell(self, what: str) -> None:
        if self._has_problem:
            return
        self._has_problem = True
        self._problem(
            f"tracker {self.name} {what}; training is not affected, metrics.jsonl has all records, "
            f"and '{self._log}' has the tracker's own words"
        )


def _environment() -> dict[str, str]:
    # The one of a trial, or of a rank, is not the tracker's.
    return {name: value for name, value in os.environ.items() if not name.startswith("HOTLAP_")}
