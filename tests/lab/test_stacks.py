"""A script that gives no answer in time: the message says how long it had, and where it was."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab.observing import watch
from hotlap.lab.stacks import ask_where, find_place
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab

TINY = Path(__file__).parents[1] / "tiny.py"
STACK = """Timeout (0:00:29)!
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/data/train.py", line 99 in beside
Thread 0x00007f02 (most recent call first):
  File "{library}", line 7 in load
  File "/data/train.py", line 12 in read_all
  File "/data/train.py", line 40 in <module>
"""


def test_the_users_innermost_line_of_the_first_thread_is_named() -> None:
    stack = STACK.replace("{library}", pytest.__file__)
    assert find_place(stack) == "/data/train.py:12 (read_all)"
    assert find_place("") == ""


def test_only_the_process_that_is_meant_is_asked(tmp_path: Path) -> None:
    stack = tmp_path / "stack"
    code = (
        "import sys, time\nfrom hotlap.trial.stack import write_stack_when_asked\n"
        "write_stack_when_asked(sys.argv[1])\nprint('ready', flush=True)\ntime.sleep(600)\n"
    )
    (tmp_path / "waits.py").write_text(code)
    words = [sys.executable, "waits.py", str(stack)]
    other = subprocess.Popen(["sleep", "600"])
    process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        assert ask_where([other.pid, process.pid], -1, stack) == ""
        # A process that has ended has no number either.
        assert ask_where([2**22 + 1, process.pid], None, stack) == ""
        assert ask_where([process.pid], process.pid, tmp_path / "absent") == ""
        place = ask_where([other.pid, process.pid], process.pid, stack)
        assert other.poll() is None and process.poll() is None
    finally:
        for each in (other, process):
            each.kill()
            each.communicate()
    # It may not have come to its last line.
    assert place in [f"{tmp_path}/waits.py:{line} (<module>)" for line in (4, 5)]


@pytest.mark.slow
def test_a_script_that_waits_before_its_first_step_is_ended_in_time() -> None:
    script = Script(path="tiny.py", args=("--fault", "hang"), cwd=str(TINY.parent))
    with Lab(script) as lab, pytest.raises(TrialError) as caught:
        watch(lab, seconds=2.0, start_up_s=12.0)
    assert caught.value.reason == "timeout"
    lines = TINY.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "sleep(600)" in text)
    assert "not over after 12 s, at " in str(caught.value)
    assert f"tiny.py:{line} (fault)." in str(caught.value)


@pytest.mark.slow
def test_a_script_that_hangs_after_its_first_steps_is_ended_in_time() -> None:
    script = Script(path="tiny.py", args=("--fault", "hang_later"), cwd=str(TINY.parent))
    began = time.monotonic()
    with Lab(script) as lab, pytest.raises(TrialError, match=r"tiny\.py:\d+ \(fault\)") as caught:
        watch(lab, seconds=4.0, start_up_s=20.0, within_s=20.0, epochs=9)
    assert caught.value.reason == "timeout"
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_recipe_that_waits_is_ended_in_time(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import time\nimport hotlap\ndef task():\n    time.sleep(600)\n    return hotlap.Task()\n"
    )
    with Lab(RecipeRun(path=str(recipe))) as lab, pytest.raises(TrialError, match="not over after"):
        watch(lab, seconds=2.0, start_up_s=10.0)
