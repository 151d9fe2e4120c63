"""`hotlap tune RECIPE`, `hotlap.tune`, and `hotlap train --plan auto`."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hotlap as library
from hotlap import cli
from hotlap.errors import MissingFile, UsageError
from hotlap.host.facts import Host
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict
from hotlap.recipe_detection import is_recipe
from hotlap.techniques import EXACT_PLAN, ORDER
from hotlap.trial.protocol import IN_TRIAL

TINY = Path(__file__).parents[1] / "tiny_recipe.py"
Run = Callable[..., subprocess.CompletedProcess[str]]
TUNED = Plan({"resident": {}, "autocast": {"dtype": "bf16"}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import hotlap\ndef task(): ...", True),
        ("from hotlap import Task\ndef task(*, lr: float = 1): ...", True),
        ("import hotlap\nfrom common import task", True),
        ("def task(): ...", False),
        ("import hotlap\ntask = 3", False),
        ("import hotlap\ndef main():\n    def task(): ...", False),
        ("import hotlap\ndef task(:", False),
    ],
)
def test_a_recipe_is_told_from_a_script_without_being_run(
    text: str, expected: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file.py"
    path.write_text("raise SystemExit\n" + text)
    assert is_recipe(path) is expected


def plan_file(tmp_path: Path, **changes: str) -> None:
    host = Host.detect()
    on = MeasuredOn(changes.get("cpu", host.cpu), changes.get("torch", host.torch or ""))
    verdict = PlanVerdict(changes.get("tier", "statistical"), "for a test", 100)
    PlanFile(TUNED, host=on, verdict=verdict).write(tmp_path / "recipe.plan.toml")


def test_the_tuned_plan_is_used_where_it_was_measured_and_its_exact_part_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*argv: str) -> tuple[dict[str, Any], str]:
        code = cli.main(["train", "recipe.py", "--epochs", "1", "--json", *argv])
        out, said = capsys.readouterr()
        assert code == 0, said
        return json.loads(out)["plan"], said

    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(TINY.read_text())
    # Tuning writes no file where nothing is gained: the same as without a plan.
    without, _ = trained()
    plan, said = trained("--plan", "auto")
    assert plan == without == EXACT_PLAN.techniques
    assert "`hotlap tune recipe.py --epochs 1` writes it" in said
    plan_file(tmp_path)
    plan, said = trained("--plan", "auto")
    assert plan == TUNED.techniques
    assert "verdict statistical over 100 steps" in said
    plan_file(tmp_path, torch="2.11.0")
    plan, said = trained("--plan", "auto")
    assert plan == {"resident": {}}
    assert "measured with torch 2.11.0" in said
    by_hand = tmp_path / "by_hand.toml"
    by_hand.write_text('schema = 1\n[techniques.autocast]\ndtype = "bf16"\n')
    plan, said = trained("--plan", "by_hand.toml")
    assert plan == {"autocast": {"dtype": "bf16"}}
    assert "written by hand, nothing is proven" in said


def test_a_plan_for_the_engine_is_explained(hotlap: Run, tmp_path: Path) -> None:
    plan_file(tmp_path)
    done = hotlap("explain", "recipe.plan.toml")
    assert done.returncode == 0, done.stderr
    assert "numerics precision: at best `statistical`" in done.stdout
    assert "For `hotlap train` only: autocast" in " ".join(done.stdout.split())


def a_function() -> None: ...


def test_what_cannot_be_carried_into_a_trial_is_refused_with_what_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = library.Task(
        model=a_function,
        loss=lambda model, batch: 0,
        data=[1],
        optimizer=lambda model: None,
        batch_size=1,
        epochs=1,
    )
    script = tmp_path / "script.py"
    script.write_text("print()")
    for given, words in (
        (task, "was given a Task, whose functions exist only in this process"),
        (a_function, "was given the function 'a_function'"),
        (script, "is not a recipe"),
        (3, "was given a value of type int"),
    ):
        with pytest.raises(UsageError, match=words):
            library.tune(given)  # pyright: ignore[reportArgumentType]
    with pytest.raises(MissingFile, match=r"gone\.py"):
        library.tune(tmp_path / "gone.py")
    with pytest.raises(UsageError, match="Did you mean 'exact'"):
        library.tune(TINY, accept="exakt")
    monkeypatch.setenv(IN_TRIAL, "1")
    with pytest.raises(UsageError, match="__main__"):
        library.tune(TINY)


def test_a_wrong_argument_of_a_recipe_is_a_usage_error(hotlap: Run, tmp_path: Path) -> None:
    (tmp_path / "recipe.py").write_text(TINY.read_text())
    done = hotlap("tune", "recipe.py", "--epoch", "3", "--budget", "20s")
    assert done.returncode == 2, done.stderr
    assert "--epochs" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "recipe.plan.toml").exists()


@pytest.mark.slow
def test_a_real_tuning_of_a_recipe_says_all_that_it_promises(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(TINY.read_text())
    argv = f"-m hotlap tune {recipe} --epochs 300 --budget 60s --accept statistical --json"
    done = subprocess.run(
        [sys.executable, *argv.split()], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seconds"] < 60 + 15
    assert found["verdict"]["tier"] in ("exact", "rounding", "statistical")
    assert found["whole_run"]["planned_steps"] == 4800
    states = {row["name"]: row for row in found["techniques"]}
    assert set(states) == set(ORDER)
    assert all(row["why"] for row in states.values())
    assert "hotlap train" not in states["master_weights"]["why"]
    for rung in found["ladder"]:
        assert rung["speedup"]["low"] > 1 + found["noise_floor"]
    path = tmp_path / "recipe.plan.toml"
    assert path.exists() is (found["outcome"] == "gain")
    if path.exists():
        assert PlanFile.read(path).plan == Plan(found["plan"])


@pytest.mark.slow
def test_a_recipe_is_tuned_from_python(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        TINY.read_text()
        + "\nif __name__ == '__main__':\n"
        + "    found = hotlap.tune(task, arguments={'epochs': 300}, budget=30, only=['resident'])\n"
        + "    print(found.plan, found.planned_steps)\n"
    )
    done = subprocess.run(
        [sys.executable, str(recipe)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("4800")
