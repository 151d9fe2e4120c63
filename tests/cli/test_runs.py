"""`hotlap runs`: the runs in a folder, and what two of them differ in."""

import json
import math
import weakref
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap import cli
from hotlap.errors import UsageError
from hotlap.track import runs
from hotlap.track.kept_documents import check_findings, is_trained, keep_finding
from hotlap.track.metrics_file import METRICS
from hotlap.track.records import EPOCH, EVALUATION, STEP, SYSTEM, Record
from hotlap.track.run_file import RunInfo
from tests.report.page import documents

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
    # Null would be the same as a value that the run does not have.
    assert found["runs"][1]["last"]["step/loss"] == "NaN"


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
    losses = {row["name"]: row["second"] for row in found["values"] if "loss" in row["name"]}
    assert losses == {"epoch/loss": "NaN", "step/loss": "NaN"}
    assert found["system"] == [{"name": "cpu_percent", "first": 75.0, "second": 75.0}]
    assert cli.main(["runs", "compare", "runs/1", "runs/2"]) == 0
    shown = capsys.readouterr().out
    assert "parameters.lr" in shown and "host: the same" in shown and "+0" in shown


@pytest.mark.usefixtures("two")
def test_a_run_that_cannot_be_read_is_listed_as_such_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may read everything: what others are refused is refused by hand."""
    run(tmp_path / "runs/3", 1.0)
    run(tmp_path / "runs/closed/4", 1.0)
    is_file, read = Path.is_file, runs.read_records
    given: list[weakref.ref[runs.Run]] = []

    def look(path: Path) -> bool:
        if path.parent.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    def read_one(path: Path) -> Any:
        if path.parent.name == "2":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    def read_run(folder: Path) -> runs.Run:
        # The records of a run are gone before the next ones are read.
        assert all(each() is None for each in given)
        found = runs.read_run(folder)
        given.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Path, "is_file", look)
    monkeypatch.setattr(runs, "read_records", read_one)
    monkeypatch.setattr("hotlap.track.comparing.read_run", read_run)
    assert cli.main(["runs", "runs"]) == 0
    _, first, second, third = capsys.readouterr().out.splitlines()
    assert "finished" in first and "finished" in third
    assert second.split()[:2] == ["2", "unreadable"]
    assert second.rstrip().endswith("it cannot be read: Permission denied")
    assert cli.main(["runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["state"] for row in rows] == ["finished", "unreadable", "finished"]
    assert rows[0].keys() == rows[1].keys()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert cli.main(["runs", "runs"]) == 2
    assert "folder 'runs' cannot be read: no permission" in capsys.readouterr().err


@pytest.mark.usefixtures("two")
def test_a_run_that_was_damaged_by_hand_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = json.loads((tmp_path / "runs/1/run.json").read_text())
    damages = ({"plan": None}, {"task": []}, {"state": 3}, {"command": 1}, {"began": None})
    for number, damage in enumerate(damages):
        folder = tmp_path / f"runs/by hand/{number}"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**whole, **damage}))
        assert RunInfo.read(folder) is None
        assert cli.main(["report", str(folder)]) == 0
    number_for_name = {**whole, "task": {"recipe": 5}, "error": None}
    (tmp_path / "runs/2/run.json").write_text(json.dumps(number_for_name))
    (tmp_path / "runs/3/metrics.jsonl").mkdir(parents=True)
    (tmp_path / "runs/3/run.json").write_text(json.dumps(whole))
    capsys.readouterr()
    assert cli.main(["runs", "runs"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows if row[0] in ("1", "2", "3")] == [
        ["1", "finished"],
        ["2", "finished"],
        ["3", "unreadable"],
    ]
    assert sum("unknown" in row for row in rows) == len(damages)
    for words in (["runs", "compare", "runs/3", "runs/1"], ["report", "runs/3"]):
        assert cli.main(words) == 2
        err = capsys.readouterr().err
        assert "'runs/3/metrics.jsonl': Is a directory" in err and "a bug in hotlap" not in err


def compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """Return what the comparison of runs 1 and 2 says of each part, and what its page says."""
    folders = [str(tmp_path / name) for name in "12"]
    assert cli.main(["runs", "compare", *folders]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ": " in line][2:]
    page = tmp_path / "page.html"
    assert cli.main(["report", *folders, "--page", str(page)]) == 0
    capsys.readouterr()
    return lines, " ".join(page.read_text().split())


def test_what_is_not_known_of_two_runs_is_not_called_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "12":
        run(tmp_path / name, 1.0, plan={}, versions={"torch": "2.13.0"})
    same, page = compared(tmp_path, capsys)
    assert same == [
        "task (what is learned): the same",
        "plan (how it is executed): the same",
        "host: the same",
        "versions: the same",
        "code: the same",
    ]
    assert "Task, plan, host, versions, code: the same." in page
    assert "Their files name no difference. The last" in page
    dirty = "same commit, both with uncommitted changes"
    for code, words in (
        ({**CODE, "dirty": True}, dirty),
        ({}, "not known"),
        ({"folder": "/new", "commit": None, "dirty": True}, "not known"),
    ):
        for name in "12":
            info = RunInfo.read(tmp_path / name)
            assert info is not None
            replace(info, code=code).write(tmp_path / name)
        lines, page = compared(tmp_path, capsys)
        assert lines == [*same[:4], f"code: {words}"]
        assert "<p>Task, plan, host, versions: the same.</p>" in page
        assert f"<p>Code: {words}.</p>" in page
        assert f"Their files name no difference (code: {words}). The last" in page


def test_of_files_that_are_torn_nothing_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "12":
        run(tmp_path / name, 1.0)
        (tmp_path / name / "run.json").write_text('{"task": {"rec')
    lines, page = compared(tmp_path, capsys)
    assert len(lines) == 5 and all(line.endswith(": not known") for line in lines)
    assert "Task, plan, host, versions, code: not known." in page
    capsys.readouterr()
    folders = [str(tmp_path / name) for name in "12"]
    assert cli.main(["runs", "compare", *folders, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["differences"] == [] and set(found["alike"].values()) == {"not known"}


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["compare", "runs/1"], "compare was given 1 folders"),
        (["compare", "runs/1", "runs"], "'runs' is not a run's folder"),
        (["compare", "runs/1", "runs/9"], "'runs/9' is not a run's folder"),
        (["runs", "runs/1"], "2 folders were given"),
        (["open"], "open was given 0 folders"),
        (["open", "runs"], "'runs' is not a run's folder"),
        (["open", "runs/1/run.json"], "'runs/1/run.json' is a file"),
        (["open", "runs/1", "--page", "gone/a.html"], "the folder 'gone' was not found"),
        (["runs", "--no-browser"], "--no-browser was given without `open`"),
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that a browser is asked to open."""
    found: list[str] = []

    class Browser:
        def open(self, address: str) -> bool:
            found.append(address)
            return True

    monkeypatch.setattr(webbrowser, "get", Browser)
    return found


@pytest.mark.usefixtures("two")
def test_the_page_of_a_run_is_opened_in_the_browser(
    tmp_path: Path,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cli.main(["runs", "open", "runs/1"]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == tmp_path and "2 steps" in path.read_text()
    assert cli.main(["runs", "open", "runs/1", "runs/2", "--page", "both.html", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(tmp_path / "both.html")
    assert opened == [path.as_uri(), (tmp_path / "both.html").as_uri()]
    assert cli.main(["runs", "open", "runs/1", "--page", "one.html", "--no-browser"]) == 0
    assert Path("one.html").exists() and len(opened) == 2


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("is_found", [False, True])
def test_without_a_browser_the_page_is_written_and_that_is_said(
    is_found: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "_tryorder", ["gone"] if is_found else [])
    monkeypatch.setattr(
        webbrowser, "_browsers", {"gone": [None, webbrowser.GenericBrowser("no-such-browser")]}
    )
    monkeypatch.delenv("BROWSER", raising=False)
    assert cli.main(["runs", "open", "runs/1", "--page", "one.html"]) == 1
    out, err = capsys.readouterr()
    assert out == "one.html\n" and "no browser was found" in err and Path("one.html").exists()


def keep(folder: Path, *kinds: str, script: str = "/home/me/train.py") -> None:
    for kind in kinds:
        document = json.dumps(getattr(documents, kind)())
        keep_finding(folder, kind, document, {"script": script, "arguments": ""})


def test_what_was_found_out_about_a_run_is_listed_compared_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    run(tmp_path / "runs/1", 1.0, task={"script": "/home/me/train.py"})
    keep(tmp_path / "runs/1", "diagnosis", "tuning")
    keep(tmp_path / "runs/2", "memory", "verdict")
    assert cli.main(["runs", "runs"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert "finished" in first and "diagnosis, tuning 2.31x" in first
    assert "measured" in second and "memory, verdict rounding" in second and "train.py" in second
    assert cli.main(["runs", "runs", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert rows[0]["findings"]["tuning"] == {
        "outcome": "gain",
        "speedup": 2.314,
        "tier": "rounding",
    }
    assert list(rows[1]["findings"]) == ["memory", "verdict"]
    assert cli.main(["runs", "compare", "runs/1", "runs/2"]) == 0
    assert "tuning: speedup" in capsys.readouterr().out
    for argv in (["runs/1"], ["runs/2"], ["runs/1", "runs/2"]):
        assert cli.main(["report", *argv, "--page", "page.html"]) == 0
        html = " ".join(Path("page.html").read_text().split())
        if argv == ["runs/1"]:
            assert "Why it is slow" in html and "2.31 times faster" in html
            assert "hotlap tune train.py --epochs 10" in html and "2 steps" in html
        elif argv == ["runs/2"]:
            assert "Nothing was trained here yet" in html and "Where the memory goes" in html
            assert "Whether it learns the same" in html
        else:
            assert "What was found out" in html and "tuning: speedup" in html


def test_a_document_that_cannot_be_shown_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    keep(folder, "diagnosis")
    (folder / "tuning.json").write_text(json.dumps({"schema": 99, "kind": "tuning"}))
    # Somebody else's, and one that is torn.
    (folder / "verdict.json").write_text('{"kind": "of another program"}')
    (folder / "memory.json").write_text('{"kind": "mem')
    assert cli.main(["report", str(folder)]) == 0
    html = (folder / "report.html").read_text()
    assert "has schema 99, which a newer hotlap wrote" in html and "Why it is slow" in html
    assert "learns the same" not in html


def test_a_folder_keeps_what_was_found_out_about_its_own_run(tmp_path: Path) -> None:
    keep(tmp_path / "run", "diagnosis")
    assert not is_trained(tmp_path / "run")
    check_findings(tmp_path / "run", {"script": "/home/me/train.py"})
    with pytest.raises(
        UsageError, match=r"a run of '/home/me/train\.py', but this command was given '/home/me/b"
    ):
        check_findings(tmp_path / "run", {"script": "/home/me/b.py"})
    before = (tmp_path / "run" / "run.json").read_bytes()
    keep(tmp_path / "run", "tuning")
    assert (tmp_path / "run" / "run.json").read_bytes() == before
    run(tmp_path / "trained", 1.0)
    assert is_trained(tmp_path / "trained")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        check_findings(tmp_path / "file" / "run", {})


def test_a_folder_that_cannot_be_used_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("raise SystemExit('it was started')\n")
    keep(tmp_path / "run", "diagnosis")
    commands = (["diagnose"], ["diagnose", "--memory"], ["tune"], ["verify", "plain", "plain"])
    for command in commands:
        assert cli.main([*command, "train.py", "--run-dir", "run"]) == 2
        err = capsys.readouterr().err
        assert "holds a run of '/home/me/train.py'" in err and "it was started" not in err
