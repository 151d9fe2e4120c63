"""What a tracker is given of a run that is killed, resumed or begun anew."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap.track.feeding import Follower, files_of
from hotlap.track.metrics_file import METRICS
from hotlap.track.records import BEGAN, EVALUATION, RESUMED, STEP, SYSTEM, Record
from hotlap.track.run_file import RunInfo
from hotlap.track.sent import Sent

OWN = "tests.track.trackers"


def add(folder: Path, kind: str, *steps: int) -> None:
    """Append records to a run's file."""
    values = {} if kind in (BEGAN, RESUMED) else {"loss": 0.5}
    with (folder / METRICS).open("a") as stream:
        for step in steps:
            stream.write(Record(kind, step, None, float(step), values).line())


def feed(folder: Path, name: str, offset: int, resumed_step: int | None = None) -> None:
    """Hand a tracker what is in the file, as of a run that is then killed."""
    files_of(folder, name).mkdir(parents=True, exist_ok=True)
    follower = Follower(name, folder, offset, resumed_step, lambda *_, **__: None)
    reading, writing = os.pipe()
    os.close(writing)
    with os.fdopen(reading) as stream:
        follower.run(stream)


def calls(folder: Path, name: str) -> list[list[Any]]:
    path = files_of(folder, name) / "calls.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def logged(folder: Path, name: str) -> list[int]:
    return [call[1] for call in calls(folder, name) if call[0] == "log"]


@pytest.mark.parametrize(
    ("name", "again"),
    [(f"{OWN}:Writes", []), (f"{OWN}:Hides", [4, 5])],
    ids=["once", "again where it hides them"],
)
def test_steps_that_are_taken_again_are_handed_on_once(
    name: str, again: list[int], tmp_path: Path
) -> None:
    RunInfo(began="monday").write(tmp_path)
    add(tmp_path, BEGAN, 0)
    add(tmp_path, STEP, 1, 2, 3, 4, 5)
    feed(tmp_path, name, 0)
    for _ in range(2):
        offset = (tmp_path / METRICS).stat().st_size
        add(tmp_path, RESUMED, 3)
        add(tmp_path, STEP, 4, 5)
        feed(tmp_path, name, offset, 3)
    assert logged(tmp_path, name) == [1, 2, 3, 4, 5, *again, *again]
    offset = (tmp_path / METRICS).stat().st_size
    add(tmp_path, RESUMED, 3)
    add(tmp_path, STEP, 4, 5, 6, 7)
    # Of what was not evaluated before it was killed, nothing was handed on.
    add(tmp_path, EVALUATION, 5)
    feed(tmp_path, name, offset, 3)
    assert logged(tmp_path, name)[5 + 2 * len(again) :] == [*again, 6, 7, 5]


def test_records_of_the_process_that_takes_up_a_run_are_left_to_it(tmp_path: Path) -> None:
    """A tracker that is slow reads on when the run that it belongs to was killed and resumed."""
    name = f"{OWN}:Writes"
    info = RunInfo(began="monday")
    info.write(tmp_path)
    files_of(tmp_path, name).mkdir(parents=True)
    reading, writing = os.pipe()
    with os.fdopen(reading) as stream:
        before = Follower(name, tmp_path, 0, None, lambda *_, **__: None)
        add(tmp_path, BEGAN, 0)
        add(tmp_path, STEP, 1, 2, 3, 4)
        offset = (tmp_path / METRICS).stat().st_size
        replace(info, resumed=({"at": "tuesday", "step": 2},)).write(tmp_path)
        add(tmp_path, RESUMED, 2)
        add(tmp_path, STEP, 3, 4, 5)
        # A child of the killed process may hold the other end, here for a while.
        ended = threading.Timer(2.0, os.close, [writing])
        ended.start()
        before.run(stream)
        ended.join()
    assert logged(tmp_path, name) == [1, 2, 3, 4]
    assert calls(tmp_path, name)[-1] == ["end", "killed"]
    feed(tmp_path, name, offset, 2)
    assert logged(tmp_path, name) == [1, 2, 3, 4, 5]


def test_a_script_that_its_launcher_starts_again_is_still_followed(tmp_path: Path) -> None:
    RunInfo(began="monday").write(tmp_path)
    for steps in ((1, 2), (1, 2, 3)):
        add(tmp_path, BEGAN, 0)
        add(tmp_path, STEP, *steps)
    feed(tmp_path, f"{OWN}:Hides", 0)
    assert logged(tmp_path, f"{OWN}:Hides") == [1, 2, 1, 2, 3]


def test_the_machine_is_seen_before_the_first_step_of_a_resumed_run(tmp_path: Path) -> None:
    name = f"{OWN}:Writes"
    RunInfo(began="monday").write(tmp_path)
    add(tmp_path, SYSTEM, 1, 3, 4)
    feed(tmp_path, name, 0)
    offset = (tmp_path / METRICS).stat().st_size
    add(tmp_path, RESUMED, 3)
    add(tmp_path, SYSTEM, 3, 3, 4, 5)
    feed(tmp_path, name, offset, 3)
    assert logged(tmp_path, name) == [1, 3, 4, 3, 3, 5]


def test_a_run_that_begins_anew_is_handed_on_as_a_whole(tmp_path: Path) -> None:
    for began in ("monday", "tuesday"):
        RunInfo(began=began).write(tmp_path)
        offset = (tmp_path / METRICS).stat().st_size if (tmp_path / METRICS).exists() else 0
        add(tmp_path, BEGAN, 0)
        add(tmp_path, STEP, 1, 2, 3)
        feed(tmp_path, f"{OWN}:Writes", offset)
    assert logged(tmp_path, f"{OWN}:Writes") == [1, 2, 3, 1, 2, 3]


def test_the_process_that_fed_the_tracker_before_is_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Record(STEP, 7, None, 1.0, {"loss": 0.5})
    before = Sent(tmp_path / "sent.json", "monday")
    # The negative control: what does not end is not waited for for ever, and that is said.
    early = Sent(tmp_path / "sent.json", "monday", patience_s=0.0)
    assert early.is_new(step) and "has not ended" in capsys.readouterr().err
    early.close()

    def end() -> None:
        before.note(step)
        before.keep()
        before.close()

    timer = threading.Timer(0.1, end)
    timer.start()
    after = Sent(tmp_path / "sent.json", "monday", patience_s=10.0)
    timer.join()
    assert not after.is_new(step) and not capsys.readouterr().err
    after.close()


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"run": "monday", "steps": []}'])
def test_of_a_file_that_is_torn_nothing_is_known(torn: str, tmp_path: Path) -> None:
    (tmp_path / "sent.json").write_text(torn)
    sent = Sent(tmp_path / "sent.json", "monday")
    assert sent.is_new(Record(STEP, 1, None, 1.0, {"loss": 0.5}))
    sent.close()


def test_a_tracker_takes_the_last_records_of_a_run_that_was_killed(
    tmp_path: Path, root: Path
) -> None:
    """Nobody listens any more to what the tracker's process says."""
    name = f"{OWN}:Writes"
    RunInfo(began="monday").write(tmp_path)
    add(tmp_path, STEP, 1, 2)
    files_of(tmp_path, name).mkdir(parents=True)
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "hotlap.track.feeding", name, str(tmp_path), "0", "-"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=root,
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert [call[0] for call in calls(tmp_path, name)] == ["begin", "log", "log", "end"]
    assert calls(tmp_path, name)[-1] == ["end", "killed"]
