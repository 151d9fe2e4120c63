"""A process knows how long its threads waited for a core that others had."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotlap.host import run_queue
from hotlap.host.run_queue import seconds_waited, waits

SPIN = "while True:\n    pass"


def share_waited(seconds: float = 0.5) -> float:
    """Return how long this thread, which computes all the time, has no core."""
    before, until = waits(), time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return seconds_waited(before, waits()) / seconds


@pytest.mark.skipif(waits() is None, reason="this system has no such statistics")
def test_what_others_take_of_a_core_is_known() -> None:
    cores = os.sched_getaffinity(0)
    core = min(cores)
    pinned = f"import os\nos.sched_setaffinity(0, [{core}])\n{SPIN}"
    alone = share_waited()
    others = [subprocess.Popen([sys.executable, "-c", pinned]) for _ in range(3)]
    try:
        os.sched_setaffinity(0, [core])
        time.sleep(0.5)
        assert share_waited() > max(0.3, alone)
    finally:
        os.sched_setaffinity(0, cores)
        for other in others:
            other.kill()
            other.wait()


def test_where_the_system_does_not_say_it_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_queue, "_TASKS", str(tmp_path / "task"))
    assert waits() is None
    (tmp_path / "task" / "1").mkdir(parents=True)
    assert waits() is None
    assert seconds_waited(None, {"1": 10**9}) == 0.0


def test_what_ended_threads_have_waited_takes_nothing_from_the_others() -> None:
    second = 10**9
    assert seconds_waited({"1": 3 * second, "2": second}, {"2": 2 * second, "3": second}) == 2.0
