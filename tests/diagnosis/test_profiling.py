"""`hotlap diagnose --trace`: a trace of a real script and of a recipe, and wrong input."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.diagnosis.outfiles import check_json, is_trace, kinds_of
from hotlap.errors import TrialError, UsageError
from hotlap.host.facts import Host
from hotlap.lab.profiling import profile_steps
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab

TESTS = Path(__file__).parents[1]


def test_what_is_recorded_is_what_was_asked_for_and_what_the_host_has(tmp_path: Path) -> None:
    assert kinds_of((), tmp_path, Host()) == ("cpu",)
    assert kinds_of(("memory", "cpu"), None, Host()) == ("memory", "cpu")
    with pytest.raises(UsageError, match="no CUDA GPU was found"):
        kinds_of(("cuda",), None, Host())
    with pytest.raises(UsageError, match="folder 'nowhere' was not found"):
        kinds_of((), Path("nowhere"), Host())
    assert is_trace("a.pt.trace.json") and is_trace("a.json.gz") and not is_trace("train.py")


def test_a_report_replaces_nothing_but_a_report(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"schema": 1}')
    (tmp_path / "train.py").write_text("import torch")
    for name in ("report.json", "other.json"):
        check_json(tmp_path / name, f"--out {name}")
    with pytest.raises(UsageError, match=r"--out train.py exists and was not written"):
        check_json(tmp_path / "train.py", "--out train.py")
    with pytest.raises(UsageError, match="--out runs exists"):
        check_json(tmp_path, "--out runs")
    with pytest.raises(UsageError, match="folder 'nowhere' was not found"):
        check_json(Path("nowhere/a.json"), "--out nowhere/a.json")


def diagnose(*words: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hotlap", "diagnose", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_script_leaves_a_trace_that_is_read_again(tmp_path: Path) -> None:
    words = [str(TESTS / "tiny.py"), "--budget", "10s", "--epochs", "200"]
    done = diagnose(*words, "--trace", ".", "--profile", "cpu", "--json", cwd=tmp_path)
    (file,) = tmp_path.glob("*.pt.trace.json")
    told: dict[str, Any] = json.loads(done.stdout)["profile"]
    assert told["file"] == file.name and told["profiled_ms"] > 0
    names = {row["name"] for row in told["profile"]["modules"]}
    assert {"Sequential", "1", "3"} <= names
    phases = told["profile"]["phases_ms"]
    assert min(phases[name] for name in ("data", "forward", "backward", "optimizer")) > 0
    # As JSON reads it, where tuples are lists.
    assert json.loads(diagnose(file.name, "--json", cwd=tmp_path).stdout) == {
        **told["profile"],
        "schema": 1,
    }
    page = diagnose(file.name, "--out", "found.json", cwd=tmp_path)
    assert json.loads((tmp_path / "found.json").read_text())["steps"] == told["profile"]["steps"]
    assert page.returncode == 0 and "__getitem__ (tiny.py" in page.stdout.replace("\n", " ")


@pytest.mark.slow
def test_a_recipe_is_profiled_by_phases_and_modules() -> None:
    recipe = RecipeRun(path=str(TESTS / "tiny_recipe.py"), python=sys.executable)
    with Lab(recipe) as lab:
        found = profile_steps(lab, kinds=["cpu"], seconds=5.0, folder=None).profile
    phases = found.phases_ms
    assert min(phases[name] for name in ("data", "forward", "backward", "optimizer")) > 0
    assert {"Sequential", "0", "3"} <= {row.name for row in found.modules}


@pytest.mark.slow
def test_a_run_of_two_steps_is_too_short_for_a_profile() -> None:
    script = Script(path=str(TESTS / "tiny.py"), args=("--samples", "32", "--epochs", "1"))
    with Lab(script) as lab, pytest.raises(TrialError, match="before a step could be profiled"):
        profile_steps(lab, kinds=["cpu"], seconds=5.0, folder=None)
