"""Processes that hotlap starts find the modules that it finds itself, and no others."""

import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.lab.subject import RecipeRun, start_module


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that takes the place of a standard one."""
    (tmp_path / "argparse.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(folder: Path) -> int:
    command = [*start_module("json.tool", folder), "--help"]
    return subprocess.run(command, cwd=folder, capture_output=True).returncode


@pytest.mark.parametrize(("entry", "code"), [(None, 0), ("", 9), ("its own", 9)])
def test_the_current_folder_is_searched_only_where_this_process_searches_it(
    entry: str | None, code: int, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [each for each in sys.path if each]
    added = [] if entry is None else [str(here) if entry == "its own" else entry]
    monkeypatch.setattr(sys, "path", [*added, *others])
    assert started(here) == code


def test_trials_of_a_recipe_are_started_so(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = RecipeRun(path="recipe.py", args=("--lr", "1"), python="python", cwd=str(here))
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each])
    role = ["-m", "hotlap.engine.roles.process", "recipe.py", "--lr", "1"]
    assert recipe.command() == ["python", "-P", *role]
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    assert recipe.command() == ["python", *role]
