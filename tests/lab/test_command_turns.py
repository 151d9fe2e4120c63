"""Commands that run in turns: their times do not contain those of the others."""

import sys
import time
from pathlib import Path

import psutil
import pytest

from hotlap.lab.command_turns import run_in_turns

COUNTING = """
import sys, time
print("begins")
end = time.process_time() + float(sys.argv[1])
while time.process_time() < end:
    pass
print("counted")
print("without a newline", end="")
sys.exit(int(sys.argv[2]))
"""


def command(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", code, *arguments]


def test_each_is_timed_by_its_own_turns(tmp_path: Path) -> None:
    begin = time.monotonic()
    first, second = run_in_turns(
        [command(COUNTING, "0.5", "0"), command(COUNTING, "1.0", "3")], tmp_path, turn_s=0.1
    )
    took_s = time.monotonic() - begin
    assert (first.exit_code, second.exit_code) == (0, 3)
    assert first.output == "begins\ncounted\nwithout a newline\n"
    # Side by side, or one after the other with the other's turns counted, it would be more.
    assert first.seconds >= 0.5 and second.seconds >= 1.0
    assert first.seconds + second.seconds <= took_s
    began, counted, _ = (seconds for seconds, _ in second.lines)
    assert began + 0.9 < counted <= second.seconds


ALIVE = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid)
time.sleep(60)
"""


def test_nothing_is_left_where_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []

    def interrupt(pid: int, **_: object) -> None:
        found.extend(str(each.pid) for each in psutil.Process(pid).children())
        if len(found) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("hotlap.lab.command_turns.family.stop", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_in_turns([command(ALIVE), command(ALIVE)], tmp_path, turn_s=1.5)
    assert len(found) == 2
    gone = time.monotonic() + 10
    while any(psutil.pid_exists(int(each)) for each in found) and time.monotonic() < gone:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(int(each)) for each in found)
