"""A process knows how long its threads waited for a core that others had."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotlap.host import run_queue
from hotlap.host.run_queue import seconds_waited

SPIN = "while True:\n    pass"


def share_waited(seconds: float = 0.5) -> float:
    """Return how long this thread, which computes all the time, has no core."""
    before, until = seconds_waited(), time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    after = seconds_waited()
    assert before is not None and after is not None
    return (after - before) / seconds


@pytest.mark.skipif(seconds_waited() is None, reason="this system has no such statistics")
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
    assert seconds_waited() is None
    (tmp_path / "task" / "1").mkdir(parents=True)
    assert seconds_waited() is None
