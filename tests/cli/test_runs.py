"""`hotlap runs`: the runs in a folder, and what two of them differ in."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from hotlap import cli
from hotlap.track.metrics_file import METRICS
from hotlap.track.records import EPOCH, EVALUATION, STEP, SYSTEM, Record
from hotlap.track.run_file import RunInfo

CODE = {"commit": "a" * 40, "dirty": False}


def run(folder: Path, loss: float, **info: Any) -> None:
    """Write a run of two steps, by hand."""
    folder.mkdir(parents=True)
    given = {
        "task": {"recipe": "/home/me/recipe.py", "parameters": {"lr": 0.1, "batch_size": 8}},
        "plan": {"resident": {}},
        "host": {"cpu": "AMD", "cores": 2},
        "code": CODE,
        "began": "2026-11-25T21:04:09.120+00:00",
        "state": "finished",
    }
    RunInfo(**{**given, **info}).write(folder)
    records = [
        Record(STEP, 1, 1, 1.0, {"loss": 2.0}),
        Record(STEP, 2, 1, 2.0, {"loss": loss}),
        Record(EPOCH, 2, 1, 2.5, {"loss": (2 + loss) / 2}),
        Record(SYSTEM, 1, None, 1.5, {"cpu_percent": 50.0}),
        Record(SYSTEM, 2, None, 2.5, {"cpu_percent": 100.0}),
        Record(EVALUATION, 2, 1, 3723.0, {"accuracy": 0.75}),
    ]
    (folder / METRICS).write_text("".join(record.line() for record in records))


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    run(tmp_path / "runs/1", 1.0)
    run(
        tmp_path / "runs/2",
        math.nan,
        task={"recipe": "/home/me/recipe.py", "parameters": {"lr": 0.3, "batch_size": 8}},
        plan={"resident": {}, "autocast": {"dtype": "bf16"}},
        code={**CODE, "dirty": True},
        state="failed",
    )


@pytest.mark.usefixtures("two")
def test_runs_of_a_folder_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "runs"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert " ".join(first.split()) == "1 finished 2026-11-25 21:04 2 1:02:03 1.5 epoch recipe.py"
    assert "failed" in second and "nan" in second
    assert cli.main(["runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1
    assert [row["folder"] for row in found["runs"]] == ["runs/1", "runs/2"]
    assert found["runs"][0]["last"]["step/loss"] == 1.0
    assert found["runs"][1]["last"]["step/loss"] is None


@pytest.mark.usefixtures("two")
def test_two_runs_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runs", "compare", "runs/1", "runs/2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == [
        {"part": "task", "name": "parameters.lr", "first": 0.1, "second": 0.3},
        {"part": "plan", "name": "autocast.dtype", "first": None, "second": "bf16"},
        {"part": "code", "name": "dirty", "first": False, "second": True},
    ]
    accuracy = found["values"][0]
    assert accuracy == {"name": "evaluation/accuracy", "first": 0.75, "second": 0.75}
    assert [row["name"] for row in found["values"]] == [
        "evaluation/accuracy",
        "epoch/loss",
        "step/loss",
    ]
    assert found["system"] == [{"name": "cpu_percent", "first": 75.0, "second": 75.0}]
    assert cli.main(["runs", "compare", "runs/1", "runs/2"]) == 0
    shown = capsys.readouterr().out
    assert "parameters.lr" in shown and "host: the same" in shown and "+0" in shown


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["compare", "runs/1"], "compare was given 1 folders"),
        (["compare", "runs/1", "runs"], "'runs' is not a run's folder"),
        (["compare", "runs/1", "runs/9"], "'runs/9' is not a run's folder"),
        (["runs", "runs/1"], "2 folders were given"),
        (["nowhere"], "folder 'nowhere' was not found"),
    ],
)
def test_wrong_folders_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["runs", *words]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.usefixtures("two")
def test_a_folder_without_runs_is_said_to_be_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert cli.main(["runs", "empty"]) == 0
    assert capsys.readouterr().out == "no runs in 'empty'\n"
