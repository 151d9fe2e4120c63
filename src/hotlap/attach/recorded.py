"""`RecordedScript`: in the parent, writes a script's `run.json`, and starts and ends trackers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.errors import StorageError, UsageError
from hotlap.plan import Plan
from hotlap.track.follower_process import FollowerProcess, end_all
from hotlap.track.kept_documents import is_trained
from hotlap.track.metrics_file import METRICS
from hotlap.track.recording import check_folder, describe
from hotlap.track.run_file import FAILED, FINISHED, RunInfo, now

_NO_LOSS = (
    "no loss was recorded: no process that hotlap is attached to called backward() on a loss and "
    "then took a step of a torch optimizer"
)
_NOT_SAID = (
    "no loss was recorded, and the script's own process did not say why: it never used torch, or "
    "it ended without Python's clean-up (os._exit), which loses the records of the last half second"
)


class RecordedScript:
    """Writes `run.json`, and feeds trackers with what the script's own process records.

    Args:
        folder: the run's; made if it is missing.
        trackers: see `check_trackers`.
        every_s: seconds between two samples of system metrics.
        notice: called with what the user should know.

    Raises:
        UsageError: the folder cannot be written into, or holds a run already.
    """

    def __init__(
        self, folder: Path, trackers: Sequence[str], every_s: float, notice: Callable[[str], None]
    ) -> None:
        self.folder = folder.resolve()
        self._trackers, self._every_s, self._notice = trackers, every_s, notice
        self._info = RunInfo()
        self._followers: list[FollowerProcess] = []
        self._problems: list[str] = []
        if is_trained(self.folder):
            raise UsageError(
                f"'{folder}' already holds a run, and the records of two runs would be mixed. Pass "
                "a new folder with --run-dir."
            )
        check_folder(self.folder)

    def begin(self, about: dict[str, Any], plan: Plan) -> dict[str, Any]:
        """Write what the run is; return the option `record` of the script's process.

        Args:
            about: what `run.json` says of the task.
            plan: how the script is run.

        Raises:
            StorageError: it cannot be written.
        """
        self._info = describe(about, plan, None, None)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._info.write(self.folder)
        except OSError as error:
            raise StorageError(
                f"run.json could not be written to '{self.folder}': {error.strerror or error}. "
                "Free some space, or pass another folder with --run-dir."
            ) from error
        for name in self._trackers:
            try:
                started = FollowerProcess(name, self.folder, 0, None, self._problems.append)
            except OSError as error:
                self._problems.append(f"tracker {name} could not be started: {error}")
            else:
                self._followers.append(started)
        return {
            "folder": str(self.folder),
            "began": self._info.began,
            "every_s": self._every_s,
        }

    def end(self, exit_code: int, recorded: dict[str, Any] | None) -> None:
        """Write how the script has ended, and let trackers take the last records.

        Args:
            exit_code: the script's.
            recorded: what its process said of its records, None if it said nothing.
        """
        state = FAILED if exit_code else FINISHED
        error = f"exit code {exit_code}" if exit_code else None
        self._info = replace(self._info, state=state, error=error, ended=now())
        try:
            self._info.write(self.folder)
        except OSError as full:
            self._problems.append(f"run.json could not be written to '{self.folder}': {full}")
        end_all(self._followers, state)
        self._problems += (recorded or {}).get("problems", [])
        path = self.folder / METRICS
        if exit_code == 0 and not (path.exists() and path.stat().st_size):
            self._problems.append(_NOT_SAID if recorded is None else _NO_LOSS)
        for problem in self._problems:
            self._notice(problem)
