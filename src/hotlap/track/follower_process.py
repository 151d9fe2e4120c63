"""`FollowerProcess`: starts the process that feeds a tracker, hears it, and waits for its end."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from hotlap.track import feeding
from hotlap.track.tracker import short_name

_PATIENCE_S = 15.0
"""Seconds without a sign of a tracker after which the end of a run waits for it no longer."""
_BEGIN_S = 60.0
"""Seconds that a tracker may take to begin: MLflow makes its database in ten."""
_MOST_S = 120.0
"""Seconds that the end of a run waits at most."""
_LOOK_S = 0.2
_STALLED_S = 60.0
"""Seconds without a sign of a tracker that has records to take, after which that is said."""
_LOG = "log.txt"
_pipes: "weakref.WeakSet[IO[bytes]]" = weakref.WeakSet()
"""Of trackers that are told how the run ends. A forked child that outlived it would hold them."""


def _close_all() -> None:
    for pipe in list(_pipes):
        pipe.close()


os.register_at_fork(after_in_child=_close_all)


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
        files = feeding.files_of(folder, name)
        files.mkdir(parents=True, exist_ok=True)
        self._log = files.with_name(f"{short_name(name)}-{_LOG}")
        self._heard_at, self._taken, self._is_over = time.monotonic(), offset, False
        self._has_problem = self._has_begun = False
        self._started_at = self._heard_at
        step = "-" if resumed_step is None else str(resumed_step)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", feeding.__name__, name, str(folder), str(offset), step],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C is the training's, which ends first.
                start_new_session=True,
                env=_environment(),
            )
        assert self._process.stdin is not None
        _pipes.add(self._process.stdin)
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

    def tell_end(self, state: str) -> None:
        """Tell the tracker how the run has ended.

        Args:
            state: see `RunInfo.state`.
        """
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{state}\n".encode())
            self._process.stdin.close()

    def wait(self) -> None:
        """Let the tracker take the last records, as long as it gives signs of doing so."""
        told_at = time.monotonic()
        while self._is_running():
            now = time.monotonic()
            since = max(self._heard_at, told_at) + _PATIENCE_S
            until = since if self._has_begun else max(told_at, self._started_at + _BEGIN_S)
            if now > min(until, told_at + _MOST_S):
                self._tell("did not end with the run" if self._has_begun else "did not begin")
                self._process.kill()
                self._process.wait()
        self._listener.join(1)

    def _is_running(self) -> bool:
        try:
            self._process.wait(_LOOK_S)
        except subprocess.TimeoutExpired:
            return True
        return False

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
        self._has_begun = True
        if said["kind"] == feeding.TAKEN:
            self._taken = said["offset"]
        elif said["kind"] == feeding.FAILED:
            self._tell(f"failed ({said['error']})")
        return said["kind"] == feeding.ENDED

    def _tell(self, what: str) -> None:
        if self._has_problem:
            return
        self._has_problem = True
        self._problem(
            f"tracker {self.name} {what}; training is not affected, metrics.jsonl has all records, "
            f"and '{self._log}' has the tracker's own words"
        )


def end_all(followers: Sequence[FollowerProcess], state: str) -> None:
    """Tell trackers how their run has ended, and let them take the last records.

    Args:
        followers: of one run.
        state: see `RunInfo.state`.
    """
    for follower in followers:
        follower.tell_end(state)
    for follower in followers:
        follower.wait()


def _environment() -> dict[str, str]:
    # The one of a trial, or of a rank, is not the tracker's.
    return {name: value for name, value in os.environ.items() if not name.startswith("HOTLAP_")}
