"""`hotlap report` and `--page`: what they refuse before anything starts, and what they write."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap import cli
from hotlap.search.spec import SearchSpec
from hotlap.search.state import Job, Outcome
from hotlap.search.study import JOURNAL
from hotlap.techniques import EXACT_PLAN
from tests.report.page import documents


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tuning.json"
    path.write_text(json.dumps(documents.tuning()))
    return path


def run(*argv: str | Path) -> int:
    return cli.main(["report", *map(str, argv)])


def test_a_stored_document_becomes_a_page_beside_it(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stored) == 0
    out, err = capsys.readouterr()
    assert not out and err == f"hotlap: page written to {stored.with_suffix('.html')}\n"
    html = stored.with_suffix(".html").read_text()
    assert "2.31 times faster" in html
    # Once more: a page of its own is replaced.
    assert run(stored) == 0
    assert run(stored, "--page", "other.html") == 0
    assert Path("other.html").read_text() == html


def test_a_runs_folder_becomes_a_page_in_it(tmp_path: Path) -> None:
    folder = documents.write_run(tmp_path / "run", 0.1)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write('what is no record\n{"kind": "step", "step": 41, "tor')
    assert run(folder) == 0
    html = (folder / "report.html").read_text()
    assert "40 steps in 4.0 s" in html and "1 lines of `metrics.jsonl` hold no record" in html
    assert "0123abcd, with changes that were not committed" in html


def test_a_run_that_was_resumed_shows_each_step_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = documents.write_run(tmp_path / "run", 0.1)
    with (folder / "metrics.jsonl").open("a") as stream:
        stream.write(documents.line("resumed", 38))
        stream.write(documents.line("step", 39, loss=7.0))
    assert run(folder, "--json") == 0
    curve = json.loads(capsys.readouterr().out)["curves"]["step/loss"]
    assert curve["steps"] == list(range(1, 40)) and curve["values"][-1] == 7.0


def test_a_run_without_its_file_has_a_page_of_its_metrics(tmp_path: Path) -> None:
    folder = documents.write_run(tmp_path / "run", 0.1)
    for content in ("{torn", None):
        path = folder / "run.json"
        path.write_text(content) if content else path.unlink()
        assert run(folder) == 0
        assert "40 steps in 4.0 s" in (folder / "report.html").read_text()


def write_search(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the folder of a search of two trials, one of which is running."""
    space = {"lr": hotlap.LogUniform(1e-4, 1e-1).to_json()}
    spec = SearchSpec("recipe.py", (), space, {"lr": 0.1}, (10,), method="random", plan=plan)
    done = Outcome(Job(0, 0), "done", step=10, value=0.25, is_over=True)
    lines = [
        {"kind": "search", **spec.to_json()},
        {"kind": "job", **Job(0, 0)._asdict(), "values": {"lr": 0.1}},
        {"kind": "result", **done.to_json()},
        {"kind": "job", **Job(1, 0)._asdict(), "values": {"lr": 0.01}},
    ]
    folder.mkdir()
    (folder / JOURNAL).write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def test_a_searchs_folder_becomes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my.search"
    write_search(folder, EXACT_PLAN.techniques)
    assert run(folder) == 0
    html = (folder / "report.html").read_text()
    assert "The search is not over: 1 of 24 trials have" in html
    assert "The best one so far is trial 0" in html and "The best configuration is" not in html
    assert "hotlap train recipe.py --lr 0.1" in html
    opened = tmp_path / "opened.html"
    words = ["open", str(folder), "--no-browser", "--page", str(opened)]
    assert cli.main(["runs", *words]) == 0
    assert opened.read_text() == html
    # It is what --json prints of a search, and makes the same page once it is stored.
    capsys.readouterr()
    assert run(folder, "--json") == 0
    stored = tmp_path / "stored.json"
    stored.write_text(capsys.readouterr().out)
    assert run(stored) == 0 and stored.with_suffix(".html").read_text() == html
    # Which --plan gave other techniques is not known: no command is better than a wrong one.
    write_search(tmp_path / "planned", {"threads": {"count": 2}})
    assert run(tmp_path / "planned") == 0
    html = (tmp_path / "planned/report.html").read_text()
    assert "hotlap train recipe.py" not in html
    assert "folder of a search does not hold the command that began it" in " ".join(html.split())


def test_two_runs_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lr in (("a", 0.1), ("b", 0.3)):
        documents.write_run(tmp_path / name, lr)
    assert run("a", "b") == 0
    html = (tmp_path / "a-b.html").read_text()
    assert "They differ in task." in " ".join(html.split())
    assert "task.lr" in html and "plan.resident" not in html


def test_json_is_the_document_of_the_page(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(stored, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads(stored.read_text()) and not err
    assert not stored.with_suffix(".html").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nowhere.json"], "'nowhere.json' was not found"),
        (["empty"], "is not a run's folder"),
        (["tuning.json", "run"], "is a file, and only the folders of runs can be compared"),
        (["run", "nowhere"], "is not a run's folder"),
        (["newer.json"], "has schema 99, which a newer hotlap wrote"),
        (["newer"], "has schema 99, which a newer hotlap wrote"),
        (["tuning.json", "--page", "gone/a.html"], "the folder 'gone' was not found"),
        (["tuning.json", "--page", "tuning.json"], "was not written by hotlap"),
        (["tuning.json", "--page", "empty"], "was not written by hotlap"),
    ],
)
def test_what_cannot_be_shown_or_written_is_a_usage_error(
    stored: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = stored.read_text()
    Path("empty").mkdir()
    documents.write_run(Path("run"), 0.1)
    documents.write_run(Path("newer"), 0.1, schema=99)
    Path("newer.json").write_text(json.dumps({"schema": 99, "kind": "tuning"}))
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert not out and words in err and "Traceback" not in err
    assert stored.read_text() == before and not list(Path().glob("**/*.html"))


@pytest.mark.parametrize("command", ["diagnose", "tune", "train"])
def test_a_page_that_cannot_be_written_is_said_before_anything_starts(
    stored: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("train.py").write_text("raise SystemExit('it was started')\n")
    for page, words in (
        ("gone/a.html", "was not found"),
        (stored.name, "was not written by hotlap"),
    ):
        assert cli.main([command, "train.py", "--page", page]) == 2
        err = capsys.readouterr().err
        assert page in err and words in err and "it was started" not in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["diagnose", "trace.json", "--page", "a.html"], "--page cannot be used with 'trace.json'"),
        (
            ["train", "recipe.py", "--estimate", "--page", "a.html"],
            "cannot be used with --estimate",
        ),
    ],
)
def test_what_has_no_page_is_said_before_anything_starts(
    stored: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    del stored
    Path("trace.json").write_text('{"traceEvents": []}')
    Path("recipe.py").write_text("import hotlap\n")
    assert cli.main(argv) == 2
    assert words in capsys.readouterr().err


def test_jinja_is_imported_only_where_a_page_is_written() -> None:
    code = (
        "import sys, hotlap.report.page.writing, hotlap.cli.report, hotlap.cli.diagnose, "
        "hotlap.cli.tune, hotlap.cli.train, hotlap.cli.demo; "
        "print([name for name in ('jinja2', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_commands_write_the_page_of_what_they_print(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    for argv in (
        ["diagnose", str(here / "tiny.py"), "--epochs", "200", "--budget", "20s"],
        ["diagnose", str(here / "tiny.py"), "--memory", "--budget", "20s"],
        ["train", str(here / "tiny_recipe.py")],
    ):
        page = tmp_path / "page.html"
        page.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "hotlap", *argv, "--json", "--page", str(page)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert f"page written to {page}" in done.stderr
        (tmp_path / "stored.json").write_text(done.stdout)
        assert run(tmp_path / "stored.json") == 0
        html = page.read_text()
        assert (tmp_path / "stored.html").read_text() == html
        assert (
            f"hotlap {' '.join(argv)}" in html and json.loads(done.stdout)["made"]["torch"] in html
        )
