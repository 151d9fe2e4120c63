"""`hotlap verify` and `hotlap check`, on a script and on a recipe."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotlap.plan import Plan
from hotlap.plan.file import PlanFile

HERE = Path(__file__).parents[1]
Run = Callable[..., subprocess.CompletedProcess[str]]
FUSED = Plan({"optimizer": {"implementation": "fused"}})


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    PlanFile(FUSED).write(tmp_path / "fused.toml")
    PlanFile(Plan({"resident": {}})).write(tmp_path / "resident.toml")
    return tmp_path


def verified(hotlap: Run, *argv: str) -> dict[str, Any]:
    done = hotlap("verify", *argv, "--steps", "40", "--json", timeout_s=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plan_is_verified_against_the_plain_run(hotlap: Run, plans: Path) -> None:
    found = verified(hotlap, "plain", str(plans / "fused.toml"), str(HERE / "tiny.py"))
    verdict = found["verdict"]
    assert verdict["tier"] == "rounding"
    assert verdict["covers"]["steps"] == 32 and verdict["covers"]["evaluations"] > 0
    assert any(limit["of"] == "gradient, in all steps" for limit in verdict["limits"])
    # The script ends after two epochs.
    assert verdict["not_checked"][0] == "everything after step 32"
    assert found["a"]["plan"] == {} and found["b"]["plan"] == FUSED.to_json()
    assert [row["state"] for row in found["techniques"]] == ["applied"]


@pytest.mark.slow
def test_a_plan_is_verified_against_another_one(hotlap: Run, plans: Path) -> None:
    recipe = str(HERE / "tiny_recipe.py")
    files = str(plans / "fused.toml"), str(plans / "resident.toml")
    # Against a fused run a plain optimizer is rounding, however exact its techniques are.
    assert verified(hotlap, *files, recipe)["verdict"]["tier"] == "rounding"
    assert verified(hotlap, files[1], files[1], recipe)["verdict"]["tier"] == "exact"


@pytest.mark.slow
def test_a_change_ends_with_4_where_a_pipeline_asks(hotlap: Run, plans: Path) -> None:
    (plans / "lying.toml").write_text("schema = 1\n[techniques.scale]\n")
    words = ["--technique", "planted:SCALE", "--exit-code", "--steps", "40"]
    done = hotlap(
        "verify",
        "plain",
        str(plans / "lying.toml"),
        *words,
        str(HERE / "tiny.py"),
        timeout_s=300,
        PYTHONPATH=str(HERE / "lab"),
    )
    assert done.returncode == 4, done.stderr
    assert "delivery failed" in done.stdout


@pytest.mark.slow
def test_a_plan_is_checked_for_what_it_promises(hotlap: Run, plans: Path) -> None:
    words = ["--plan", str(plans / "fused.toml"), "--steps", "32", "--budget", "15", "--json"]
    done = hotlap("check", *words, str(HERE / "tiny.py"), "--epochs", "400", timeout_s=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["applies"] and found["holds"] and found["promised"] == "rounding"
    assert found["speedup"]["median"] > 0 and isinstance(found["gains"], bool)
    # Nothing on a recipe that has no convolution.
    PlanFile(Plan({"channels_last": {}})).write(plans / "idle.toml")
    words[1] = str(plans / "idle.toml")
    done = hotlap(
        "check", *words, "--exit-code", str(HERE / "tiny.py"), "--epochs", "400", timeout_s=300
    )
    assert done.returncode == 3, done.stderr
    assert json.loads(done.stdout)["applies"] is False
