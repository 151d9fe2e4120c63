"""hotlap, killed at any moment: no process, no mount and no changed file is left behind."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

TINY = Path(__file__).parents[1] / "tiny.py"
MARK = "TEST_KILLED_MARK"
KILLS = 5
WITHIN_S = 5.0


def marked(value: str) -> list[psutil.Process]:
    """Return the processes that have inherited a variable of the environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def mounts() -> str:
    return Path("/proc/self/mounts").read_text()


def started(words: Sequence[str], folder: Path, value: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "hotlap", *words],
        cwd=folder,
        env={**os.environ, MARK: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.parametrize("command", ["diagnose", "tune"])
def test_a_kill_leaves_nothing_behind(command: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(TINY.read_bytes())
    mounted = mounts()
    moments = random.Random(command)
    seen = killed = 0
    for number in range(KILLS):
        before = contents(tmp_path)
        value = f"{os.getpid()}-{number}"
        words = (command, "--budget", "20s", "train.py", "--epochs", "200", "--save", "last.pt")
        parent = started(words, tmp_path, value)
        # One in each part of the command: its start, what it watches, its trials.
        time.sleep(0.5 + 13.5 * (number + moments.random()) / KILLS)
        seen = max(seen, len(marked(value)))
        if parent.poll() is not None:
            # Where nothing is to be gained, a tuning ends before its budget.
            assert parent.returncode == 0
            continue
        killed += 1
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        deadline = time.monotonic() + WITHIN_S
        while (left := marked(value)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [each.cmdline() for each in left] == []
        assert contents(tmp_path) == before
        assert mounts() == mounted
    # Else it was never killed while a trial ran.
    assert seen > 1 and killed >= KILLS - 2
