"""A run's records: readable after a crash, whole lines only, and superseded by a resume."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hotlap.errors import MissingFile, UsageError
from hotlap.track.metrics_file import METRICS, MetricsFile, read_records
from hotlap.track.records import BEGAN, RESUMED, STEP, SYSTEM, Record, valid_records
from hotlap.track.run_file import FINISHED, KILLED, RUNNING, RunInfo, now, this_process
from hotlap.track.runs import find_runs, read_run
from hotlap.track.writer import Writer


def record(step: int, kind: str = STEP, **values: float) -> Record:
    return Record(kind, step, None, float(step), values)


def steps(records: list[Record]) -> list[int]:
    return [each.step for each in records]


@pytest.mark.parametrize("value", [0, 3, 2.5e-7, 1e300, math.nan, math.inf, -math.inf])
def test_a_line_gives_back_the_record_and_is_strict_json(value: float) -> None:
    written = Record(STEP, 7, 2, 1.25, {"loss": value})

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    json.loads(written.line(), parse_constant=refuse)
    read = Record.parse(written.line())
    assert read is not None and repr(read) == repr(written)


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "3", '{"kind": "step"}', '{"kind": "step", "step": "1", "values": {}}',
     '{"kind": "step", "step": 1, "epoch": null, "time_s": 1, "values": {"loss": "high"}}',
     '{"kind": "step", "step": true, "epoch": null, "time_s": 1, "values": {}}'],
)  # fmt: skip
def test_what_is_no_record_is_none(line: str) -> None:
    assert Record.parse(line) is None


def test_numbers_that_nobody_can_calculate_with_are_no_record_or_infinite() -> None:
    def line(step: int = 1, time_s: object = 0.5, loss: object = 0.5) -> str:
        values = {"loss": loss}
        return json.dumps(
            {"kind": STEP, "step": step, "epoch": 1, "time_s": time_s, "values": values}
        )

    for bad in (line(time_s=math.nan), line(time_s=math.inf), line(time_s=10**400), line(10**400)):
        assert Record.parse(bad) is None
    for given, value in ((10**400, math.inf), (-(10**400), -math.inf), (10**300, 1e300), (7, 7)):
        read = Record.parse(line(loss=given))
        assert read is not None and read.values == {"loss": value}
    assert '"Infinity"' in Record(STEP, 1, 1, 0.5, {"loss": 10**400}).line()


def test_of_a_resumed_run_the_steps_count_that_were_taken_last() -> None:
    first = [record(n) for n in range(1, 8)]
    again = [record(n) for n in range(5, 7)]
    found = valid_records([record(0, BEGAN), *first, record(4, RESUMED), *again])
    assert steps(found) == [1, 2, 3, 4, 5, 6]
    assert found[4] is again[0]
    # The same without a step taken again: what was recorded after the checkpoint is gone.
    assert steps(valid_records([*first, record(4, RESUMED)])) == [1, 2, 3, 4]
    assert steps(valid_records([*first, record(0, BEGAN), record(1, SYSTEM)])) == [1]


def test_a_torn_tail_is_cut_off_before_anything_is_appended(tmp_path: Path) -> None:
    whole, torn = record(1, loss=0.5).line(), record(2, loss=0.25).line()
    for cut in range(len(torn)):
        (tmp_path / METRICS).write_text(whole + torn[:cut])
        # What is torn is no record for readers either.
        assert steps(read_records(tmp_path / METRICS)[0]) == [1]
        file = MetricsFile(tmp_path)
        file.append(torn)
        file.close()
        assert (tmp_path / METRICS).read_text() == whole + torn


def test_a_tail_that_is_longer_than_what_is_read_at_once_is_cut_off(tmp_path: Path) -> None:
    whole = record(1, loss=0.5).line()
    (tmp_path / METRICS).write_text(whole + "x" * 200_000)
    MetricsFile(tmp_path).close()
    assert (tmp_path / METRICS).read_text() == whole


def test_one_process_at_a_time_records_into_a_folder(tmp_path: Path) -> None:
    first = MetricsFile(tmp_path)
    with pytest.raises(UsageError, match="is in use: another run writes to it"):
        MetricsFile(tmp_path, patience_s=0.0)
    first.close()
    MetricsFile(tmp_path).close()


def forked(work: Callable[[], None]) -> int:
    """Do something in a child; return its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_a_child_that_outlives_its_run_does_not_hold_the_file(tmp_path: Path) -> None:
    waits, ends = os.pipe()

    def wait() -> None:
        os.close(ends)
        os.read(waits, 1)

    def run() -> None:
        """Open the file, leave a worker behind, and die."""
        MetricsFile(tmp_path)
        forked(wait)

    assert os.waitpid(forked(run), 0)[1] == 0
    try:
        MetricsFile(tmp_path).close()
    finally:
        # The worker ends with the last end of the pipe.
        os.close(ends)
        os.close(waits)


def test_a_child_neither_writes_nor_closes_the_file_of_its_parent(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)

    def child() -> None:
        # Its own file may get the number of the parent's.
        with (tmp_path / "other").open("w") as other:
            with pytest.raises(OSError, match="the process that opened the file"):
                file.append("a line")
            file.close()
            other.write("written")

    assert os.waitpid(forked(child), 0)[1] == 0
    assert (tmp_path / "other").read_text() == "written"
    file.append(record(1).line())
    file.close()
    file.close()
    assert steps(read_records(tmp_path / METRICS)[0]) == [1]


def test_the_file_of_a_run_that_is_just_ending_is_waited_for(tmp_path: Path) -> None:
    first = MetricsFile(tmp_path)
    timer = threading.Timer(0.1, first.close)
    timer.start()
    MetricsFile(tmp_path).close()
    timer.join()


def test_killed_while_it_writes_the_file_is_readable(tmp_path: Path) -> None:
    code = f"""
    import sys
    from pathlib import Path
    from hotlap.track.metrics_file import MetricsFile
    from hotlap.track.records import Record
    file = MetricsFile(Path({str(tmp_path)!r}))
    step = 0
    while True:
        lines = []
        for _ in range(100):
            step += 1
            lines.append(Record("step", step, 1, 0.0, {{"loss": 1 / step}}).line())
        file.append("".join(lines))
        if step == 1000:
            print("ready", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    records, _, unreadable = read_records(tmp_path / METRICS)
    assert unreadable == 0 and steps(records) == list(range(1, len(records) + 1))
    assert len(records) >= 1000


def test_a_reader_takes_up_where_it_was(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path)
    file.append(record(1).line())
    first, offset, _ = read_records(tmp_path / METRICS)
    file.append(record(2).line() + record(3).line())
    second, end, _ = read_records(tmp_path / METRICS, offset)
    file.close()
    assert (steps(first), steps(second), end) == ([1], [2, 3], file.end)


def test_a_full_disk_is_said_once_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = MetricsFile(tmp_path)
    fails = [3]
    write = os.write

    def write_half(descriptor: int, content: bytes) -> int:
        if fails[0]:
            fails[0] -= 1
            write(descriptor, bytes(content)[:10])
            raise OSError(28, "No space left on device")
        return write(descriptor, content)

    monkeypatch.setattr("hotlap.track.metrics_file.os.write", write_half)
    monkeypatch.setattr("hotlap.track.writer._EVERY_S", 0.01)
    writer = Writer(file)
    for step in range(1, 6):
        writer.add(STEP, step, 1, {"loss": 0.5})
        time.sleep(0.02)
    writer.close()
    assert len(writer.problems) == 1 and "No space left on device" in writer.problems[0]
    records, _, unreadable = read_records(tmp_path / METRICS)
    assert steps(records) == [1, 2, 3, 4, 5] and unreadable == 0


def test_records_that_a_full_disk_never_took_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hotlap.track.metrics_file.os.write", fail)
    writer = Writer(MetricsFile(tmp_path))
    writer.add(STEP, 1, 1, {"loss": 0.5})
    writer.close()
    assert writer.problems[-1].startswith("1 records are lost")


def test_a_value_that_is_no_number_is_said_and_the_others_are_recorded(tmp_path: Path) -> None:
    writer = Writer(MetricsFile(tmp_path))
    strange: Any = "high"
    writer.add(STEP, 1, 1, {"loss": strange})
    writer.add(STEP, 2, 1, {"loss": strange})
    writer.add(STEP, 3, 1, {"loss": 0.5})
    writer.close()
    assert len(writer.problems) == 1 and "value of step 1" in writer.problems[0]
    assert steps(read_records(tmp_path / METRICS)[0]) == [3]


def test_a_run_whose_process_was_killed_says_so(tmp_path: Path) -> None:
    alive = RunInfo(process=this_process(), began=now())
    alive.write(tmp_path)
    read = RunInfo.read(tmp_path)
    assert read == alive
    gone = {**this_process(), "pid": 2**22 + 1}
    RunInfo(process=gone, began=now()).write(tmp_path)
    read = RunInfo.read(tmp_path)
    assert read is not None and read.state == KILLED
    # Another process may have its number by now.
    RunInfo(process={**this_process(), "started": 1.0}, began=now()).write(tmp_path)
    read = RunInfo.read(tmp_path)
    assert read is not None and read.state == KILLED
    RunInfo(process=gone, state=FINISHED).write(tmp_path)
    read = RunInfo.read(tmp_path)
    assert read is not None and read.state == FINISHED


def test_a_run_whose_process_nobody_has_waited_for_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = psutil.Process(process.pid).create_time()
        known = {**this_process(), "pid": process.pid, "started": started}
        RunInfo(process=known, began=now()).write(tmp_path)
        read = RunInfo.read(tmp_path)
        assert read is not None and read.state == RUNNING
        process.kill()
        until = time.monotonic() + 10
        while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
            time.sleep(0.01)
        read = RunInfo.read(tmp_path)
        assert read is not None and read.state == KILLED


def test_runs_are_found_below_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a/x", "a/y"):
        (tmp_path / name / "ckpt").mkdir(parents=True)
        RunInfo().write(tmp_path / name)
    assert [str(each.relative_to(tmp_path)) for each in find_runs(tmp_path)] == ["a/x", "a/y", "b"]
    with pytest.raises(MissingFile, match="is not a run's folder"):
        read_run(tmp_path)


def test_a_damaged_run_file_does_not_hide_the_records(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"task": ')
    (tmp_path / METRICS).write_text(record(3, loss=0.5).line())
    run = read_run(tmp_path)
    assert run.info is None and run.curves["step/loss"].values == (0.5,)
