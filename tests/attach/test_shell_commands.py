"""Commands that start the training script: hotlap attaches to the process that imports torch."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.attach.runner import run
from hotlap.errors import AttachError, TrialError
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab
from hotlap.techniques import EXACT_PLAN

Call = Callable[..., subprocess.CompletedProcess[str]]

TINY = Path(__file__).parents[1] / "tiny.py"
WRAPPER = """\
import os, subprocess, sys
print("before", "HOTLAP_ATTACH" in os.environ, flush=True)
code = subprocess.call([sys.executable, *sys.argv[1:]])
sys.exit(code + 3)
"""
CLEAN = """\
import os, sys
import torch
assert not [name for name in os.environ if "HOTLAP" in name and name != "HOTLAP_DATA"]
assert "attach/site" not in os.environ.get("PYTHONPATH", "")
assert not [name for name in sys.path if name.endswith("site")]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "clean.py").write_text(CLEAN)
    script = tmp_path / "train.sh"
    # The first process imports torch and does not train.
    script.write_text(
        f'#!/bin/sh\nset -e\n{sys.executable} clean.py\nexec {sys.executable} {TINY} "$@"\n'
    )
    script.chmod(0o755)
    return tmp_path


def test_a_plan_is_applied_to_the_process_that_trains(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = Script(program="./train.sh", args=("--epochs", "1"), cwd=str(folder))
    outcome = run(command, EXACT_PLAN)
    assert (outcome.exit_code, outcome.steps) == (0, 16)
    assert outcome.problems(command) == []
    assert "applied" in {row["state"] for row in outcome.techniques}
    assert "epoch 0" in capfd.readouterr().out


@pytest.mark.slow
def test_exit_code_and_output_of_a_wrapper_are_its_own(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("wrapper.py", str(TINY), "--epochs", "1")
    command = Script(program=sys.executable, args=words, cwd=str(folder))
    outcome = run(command, EXACT_PLAN)
    assert (outcome.exit_code, outcome.steps) == (3, 16)
    assert capfd.readouterr().out.startswith("before True\n")


def test_a_trial_measures_the_process_that_trains(folder: Path) -> None:
    command = Script(program="./train.sh", args=("--epochs", "3"), cwd=str(folder))
    with Lab(command) as lab:
        found = watch(lab, seconds=20, epochs=9)
    assert found.trace.facts.planned_steps == 48


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "args", "error", "words"),
    [
        ("true", (), AttachError, "no Python process that it started"),
        (sys.executable, ("-I", str(TINY)), AttachError, "flags -I, -E and -S"),
        (sys.executable, ("clean.py",), TrialError, "without an optimizer step"),
        (sys.executable, ("absent.py",), TrialError, "ended with exit code 2"),
    ],
    ids=["no Python", "isolated", "no training", "fails"],
)
def test_a_command_without_training_is_said_to_be_one(
    program: str, args: tuple[str, ...], error: type[Exception], words: str, folder: Path
) -> None:
    command = Script(program=program, args=args, cwd=str(folder))
    with Lab(command) as lab, pytest.raises(error, match=words):
        watch(lab, seconds=20)


@pytest.mark.slow
def test_a_process_that_imports_torch_beside_a_living_one_is_left_alone(folder: Path) -> None:
    (folder / "beside.py").write_text(
        "import sys\nimport torch\nprint('beside', 'hotlap.attach.start' in sys.modules)\n"
    )
    (folder / "first.py").write_text(
        "import runpy, sys\nimport torch\nopen('begun', 'w').close()\nsys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    (folder / "both.sh").write_text(
        f"{sys.executable} first.py {TINY} --epochs 3 &\n"
        "while ! [ -e begun ]; do sleep 0.1; done\n"
        f"{sys.executable} beside.py\nwait\n"
    )
    command = Script(program="sh", args=("both.sh",), cwd=str(folder))
    with Lab(command) as lab:
        found = watch(lab, seconds=20, epochs=9)
        output = lab.trials[-1].output
    assert found.trace.facts.planned_steps == 48
    assert "beside False" in output


@pytest.mark.slow
def test_diagnose_and_tune_take_a_command_behind_two_dashes(folder: Path, hotlap: Call) -> None:
    words = ("--", "./train.sh", "--epochs", "40")
    found = hotlap("diagnose", "--json", "--budget", "20s", *words, timeout_s=120)
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert document["step_ms"]["mean"] > 0
    tuned = hotlap("tune", "--budget", "20s", "--", sys.executable, str(TINY), timeout_s=120)
    assert tuned.returncode == 0, tuned.stderr
    assert os.path.basename(sys.executable) in tuned.stdout


def test_a_python_cannot_be_chosen_for_a_command(hotlap: Call) -> None:
    ended = hotlap("run", "--python", "/bin/python9", "--", "sh", "train.sh")
    assert ended.returncode == 2
    assert "--python /bin/python9 cannot be used with the command `sh train.sh`" in ended.stderr
