"""A script whose set-up does not end: the message says how long it had, and where it was."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab.late_start import late_start
from hotlap.lab.observing import watch
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.trial.start_watch import STACK_AFTER_S, STACK_FILE, note_late_start, tell_steps

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


def test_the_users_innermost_line_of_the_first_thread_is_named(tmp_path: Path) -> None:
    stack = tmp_path / "stack"
    stack.write_text(STACK.replace("{library}", pytest.__file__))
    error = late_start("train.py --lr 3", 60.0, stack, "reading")
    assert str(error).startswith(
        "`train.py --lr 3` has taken no step: its set-up was not over after 60 s, at "
        "/data/train.py:12 (read_all)."
    )
    assert "use --budget 240s" in str(error)
    assert (error.reason, error.output) == ("timeout", "reading")


def test_without_a_stack_the_rest_is_said(tmp_path: Path) -> None:
    error = late_start("train.py", 60.0, tmp_path / "stack", "")
    assert "not over after 60 s. If it only needs longer" in str(error)


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


@pytest.mark.parametrize("begins", [False, True])
def test_a_training_that_has_begun_is_not_looked_at(begins: bool, tmp_path: Path) -> None:
    stack, told = tmp_path / "stack", list[float]()
    note_late_start({STACK_FILE: str(stack), STACK_AFTER_S: 0.2})
    channel: Any = SimpleNamespace(send=lambda kind, seconds: told.append(seconds))
    tell = tell_steps(channel)
    if begins:
        tell(0.1)
    time.sleep(0.5)
    assert bool(stack.read_text()) is not begins
    tell(0.1)
    assert told == [0.1] * (1 + begins)


@pytest.mark.slow
def test_a_recipe_that_waits_is_ended_in_time(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import time\nimport hotlap\ndef task():\n    time.sleep(600)\n    return hotlap.Task()\n"
    )
    with Lab(RecipeRun(path=str(recipe))) as lab, pytest.raises(TrialError, match="not over after"):
        watch(lab, seconds=2.0, start_up_s=10.0)
