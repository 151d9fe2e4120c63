"""Every example ends well, as people write it and as a recipe."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = {
    "fashion_mnist": ("--epochs", "1"),
    "jpeg": ("--epochs", "1"),
    "lecture": ("--epochs", "1"),
    "gpt": ("--steps", "10", "--batch-size", "2"),
    "sequences": ("--epochs", "1", "--samples", "120"),
    "stream": ("--epochs", "1"),
    "two_class": (),
}
LARGEST_LOSS = {"gpt": 5.0, "sequences": 5.4}
"""After so short a training; of 256 equal guesses it would be 5.55."""


AS_RECIPES = ("fashion_mnist", "gpt", "two_class")
AS_PEOPLE_WRITE = ("jpeg", "lecture", "sequences", "stream")
"""How each example is run in `make test`; `make test-all` runs each both ways."""


def named(fast: tuple[str, ...]) -> list[Any]:
    return [pytest.param(n, marks=[] if n in fast else [pytest.mark.slow]) for n in ARGUMENTS]


def run(argv: list[str], tmp_path: Path) -> "subprocess.CompletedProcess[str]":
    # Without the data these train on scikit-learn's digits, in a second.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HOTLAP_")}
    empty = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    return subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env=kept | empty,
    )


def test_every_example_is_listed() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == set(ARGUMENTS)
    assert {*AS_RECIPES, *AS_PEOPLE_WRITE} == set(ARGUMENTS)


@pytest.mark.parametrize("name", named(AS_PEOPLE_WRITE))
def test_as_people_write_it(name: str, tmp_path: Path) -> None:
    done = run([str(EXAMPLES / name / "plain.py"), *ARGUMENTS[name]], tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("step 10: loss" if name == "gpt" else "epoch 1: loss") in done.stdout
    assert "hotlap" not in (EXAMPLES / name / "plain.py").read_text()


@pytest.mark.parametrize("name", named(AS_RECIPES))
def test_as_a_recipe(name: str, tmp_path: Path) -> None:
    recipe = str(EXAMPLES / name / "recipe.py")
    options = ["--run-dir", str(tmp_path / "run"), "--json"]
    done = run(["-m", "hotlap", "train", recipe, *ARGUMENTS[name], *options], tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["final"]["loss"] < LARGEST_LOSS.get(name, 2.5)
    assert report["run_dir"] == str(tmp_path / "run")
    assert list((tmp_path / "run" / "ckpt").glob("step-*"))
