"""`hotlap train --micro-batch`: numbers, and what is refused before anything starts."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli import main
from hotlap.lab.trial import Lab

TINY = Path(__file__).parents[1] / "tiny_recipe.py"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipe.py").write_text(TINY.read_text())
    monkeypatch.chdir(tmp_path)

    def no_trial(*_: Any, **__: Any) -> Any:
        raise AssertionError("a trial was started")

    monkeypatch.setattr(Lab, "start", no_trial)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["0"], "--micro-batch 0 is not valid. Expected: auto, or a number of samples"),
        (["abc"], "--micro-batch abc is not valid"),
        (["-3"], "-3"),
        (["2.5"], "--micro-batch 2.5 is not valid"),
        (["17"], "--micro-batch 17 is larger than a step of 16 samples. Expected: 1 to 16, or"),
        (["auto", "--memory", "lots"], "'lots' is not a memory size"),
        (["auto", "--estimate"], "and --estimate runs nothing"),
        (["7", "--memory", "1GiB"], "works only with --estimate or --micro-batch auto"),
        (["7", "--again"], "Add --micro-batch auto"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--micro-batch", *argv, "recipe.py"]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("given", "options", "why"),
    [
        ("7", {"size": 7}, "3 micro-batches of 7 samples per step"),
        ("16", None, ""),
    ],
)
def test_a_number_is_used_as_it_is(
    given: str, options: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", "--micro-batch", given, "--json", "recipe.py", "--epochs", "1"]
    assert main(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["plan"].get("micro_batch") == options
    reasons = {row["name"]: row["why"] for row in report["techniques"]}
    assert reasons.get("micro_batch", "") == why
    assert "micro_batch" not in report


def test_the_whole_of_a_step_that_the_task_splits(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["train", "--micro-batch", "16", "--json", "recipe.py", "--epochs", "1"]
    assert main([*argv, "--batch-size", "4", "--accumulate", "4"]) == 0
    report = json.loads(capsys.readouterr().out)
    reasons = {row["name"]: row["why"] for row in report["techniques"]}
    assert reasons["micro_batch"] == "1 micro-batches of 16 samples per step"


def test_auto_makes_trials(capsys: pytest.CaptureFixture[str]) -> None:
    """The negative control of all that is refused before."""
    assert main(["train", "--micro-batch", "auto", "recipe.py"]) == 1
    assert "a trial was started" in capsys.readouterr().err
