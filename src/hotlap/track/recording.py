"""`Recording`: begins and ends a run's records: `run.json`, its writer, sampler and trackers."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotlap.errors import StorageError, UsageError
from hotlap.plan import Plan
from hotlap.track.follower_process import FollowerProcess, end_all
from hotlap.track.metrics_file import MetricsFile
from hotlap.track.records import BEGAN, RESUMED
from hotlap.track.run_file import RunInfo, now, seconds_since, this_process
from hotlap.track.sampler import EVERY_S, Sampler, check_every, start_sampler
from hotlap.track.surroundings import code_in, command_line, host_here, source_folder, versions_here
from hotlap.track.tracker import check_trackers
from hotlap.track.writer import Writer


@dataclass(frozen=True)
class Request:
    """What is to be recorded of a run.

    Raises:
        UsageError: a tracker cannot be used, or the interval is too short.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    """What `run.json` says of the task beside what is known anyway: `recipe`, `parameters`."""
    trackers: Sequence[str] = ()
    every_s: float = EVERY_S
    """Seconds between two samples of system metrics."""

    def __post_init__(self) -> None:
        check_every(self.every_s)
        check_trackers(self.trackers)


class Recording:
    """Records one process's part of a run.

    Args:
        folder: the run's; made if it is missing.
        request: what is to be recorded.
        notice: called with what the user should know; from the thread that calls `add` or `end`.

    Raises:
        UsageError: the folder cannot be written into, or another process records into it.
    """

    def __init__(self, folder: Path, request: Request, notice: Callable[[str], None]) -> None:
        self.folder, self._request, self._notice = folder, request, notice
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = MetricsFile(folder)
        except OSError as error:
            raise UsageError(
                f"'{folder}' cannot be written to: {error.strerror or error}. Choose another "
                "folder with --run-dir."
            ) from error
        self._info = RunInfo()
        self._writer: Writer | None = None
        self._sampler: Sampler | None = None
        self._followers: list[FollowerProcess] = []

    def begin(self, task: Mapping[str, Any], plan: Plan, resumed_step: int | None) -> None:
        """Write what the run is, and begin to record.

        Args:
            task: what is learned.
            plan: how it is executed.
            resumed_step: the step that it resumes from, None if it begins.

        Raises:
            StorageError: `run.json` cannot be written.
        """
        about, before = {**task, **self._request.about}, None
        if resumed_step is not None:
            before = RunInfo.read(self.folder)
        self._info = describe(about, plan, before, resumed_step)
        self._write_info()
        earlier_s = 0.0 if before is None else seconds_since(self._info.began)
        writer = self._writer = Writer(self._file, earlier_s)
        offset = self._file.end
        writer.step = resumed_step or 0
        writer.add(BEGAN if resumed_step is None else RESUMED, writer.step, None, {})
        for name in self._request.trackers:
            try:
                follower = FollowerProcess(
                    name, self.folder, offset, resumed_step, writer.problems.append
                )
            except OSError as error:
                writer.problems.append(f"tracker {name} could not be started: {error}")
            else:
                self._followers.append(follower)
        self._sampler = start_sampler(writer, self._request.every_s)

    def add(self, kind: str, step: int, epoch: int | None, values: Mapping[str, float]) -> None:
        """Record values; see `Writer.add`."""
        assert self._writer is not None, "begin comes first"
        self._writer.add(kind, step, epoch, values)

    @property
    def add_loss(self) -> Callable[[int, int | None, float, float], None]:
        """Records the loss of a step: (step, epoch, seconds, loss). Cheap enough for every step."""
        assert self._writer is not None, "begin comes first"
        return self._writer.add_loss

    @property
    def now(self) -> Callable[[], float]:
        """Returns the seconds since the run began."""
        assert self._writer is not None, "begin comes first"
        return self._writer.now

    def write_now(self) -> None:
        """Write what was recorded; see `Writer.write_now`."""
        assert self._writer is not None, "begin comes first"
        self._writer.write_now()

    def look_after_trackers(self) -> None:
        """Say which trackers take no records."""
        for follower in self._followers:
            follower.look(self._file.end)
        self._tell_problems()

    def end(self, state: str, error: str | None = None) -> None:
        """Write how the run has ended, and let trackers take the last records.

        Args:
            state: see `RunInfo.state`.
            error: why it failed.
        """
        if self._writer is None:
            # It never began.
            self._file.close()
            return
        if self._sampler is not None:
            self._sampler.close()
        self._writer.close()
        self._info = replace(self._info, state=state, error=error, ended=now())
        try:
            self._write_info()
        except StorageError as full:
            self._writer.problems.append(str(full))
        end_all(self._followers, state)
        self._followers.clear()
        self._tell_problems()

    def _tell_problems(self) -> None:
        writer = self._writer
        while writer is not None and writer.problems:
            self._notice(writer.problems.popleft())

    def _write_info(self) -> None:
        try:
            self._info.write(self.folder)
        except OSError as error:
            raise StorageError(
                f"run.json could not be written to '{self.folder}': {error.strerror or error}. "
                "Free some space, or choose another folder with --run-dir."
            ) from error


def describe(
    about: Mapping[str, Any],
    plan: Plan,
    before: RunInfo | None,
    resumed_step: int | None,
) -> RunInfo:
    """Return what is written of a run that begins, or is resumed.

    Args:
        about: its task.
        plan: its plan.
        before: what the file says of a run that is resumed.
        resumed_step: see `Recording.begin`.
    """
    info = RunInfo(
        task=about,
        plan=plan.techniques,
        host=host_here(),
        versions=versions_here(),
        code=code_in(source_folder(about)),
        command=command_line(),
        began=now(),
        process=this_process(),
    )
    if resumed_step is None:
        return info
    at = {"at": now(), "step": resumed_step}
    if before is None:
        return replace(info, resumed=(at,))
    return replace(info, began=before.began or info.began, resumed=(*before.resumed, at))


def check_folder(folder: Path) -> None:
    """Refuse a folder that records cannot be written into; nothing is left behind.

    Raises:
        UsageError: it cannot be made or written, or is none.
    """
    above = folder
    while not above.exists() and above != above.parent:
        above = above.parent
    if not above.is_dir():
        raise UsageError(f"'{above}' is not a folder. Pass the path of a folder with --run-dir.")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UsageError(
            f"'{folder}' cannot be written: no permission in '{above}'. Choose another folder with "
            "--run-dir."
        )
