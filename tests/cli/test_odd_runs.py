"""`hotlap runs`: what one odd run does to the list of all: damaged numbers, and long names."""

import json
from pathlib import Path

import pytest

from hotlap import cli
from hotlap.track.metrics_file import METRICS
from tests.cli.test_runs import run


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    run(tmp_path / "runs/1", 1.0)


@pytest.mark.usefixtures("one")
def test_a_number_that_is_no_float_and_a_time_that_is_no_number_hide_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, loss, time_s in (("3", "9" * 400, "1"), ("4", "1.0", "NaN"), ("5", "1", "Infinity")):
        line = f'{{"kind": "step", "step": 1, "epoch": 1, "time_s": {time_s}, "values": '
        run(tmp_path / "runs" / name, 1.0)
        (tmp_path / "runs" / name / METRICS).write_text(f'{line}{{"loss": {loss}}}}}\n')
    assert cli.main(["runs", "runs"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[:2] for row in rows if row[0] in "1345"] == [[n, "finished"] for n in "1345"]
    assert rows[1][4:] == ["1", "0:00:01", "inf", "step", "recipe.py"]
    assert cli.main(["runs", "runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][1]["last"] == {"step/loss": "Infinity"}
    for name, words in (("3", "not finite from step 1 on"), ("4", "1 lines of"), ("5", "1 lines")):
        assert cli.main(["report", f"runs/{name}", "--page", "page.html"]) == 0
        assert words in " ".join(Path("page.html").read_text().split())


@pytest.mark.usefixtures("one")
@pytest.mark.parametrize("width", [80, 120])
def test_a_long_name_takes_lines_and_no_column(
    width: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name = "2026-11-27_" + "resnet50_lr0.0029_" * 5
    run(tmp_path / "runs" / name, 1.0)
    assert cli.main(["runs", "runs"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "state", "began", "steps", "time", "last", "loss", "found", "of"]
    assert all(len(line) <= width for line in (head, *lines))
    row = next(line.split() for line in lines if line.startswith("2026-11-27_"))
    assert {"finished", "2026-11-25", "2", "1:02:03", "1.5", "recipe.py"} <= set(row)
    # The whole name is there, and those that are short keep one line.
    end = head.index("state")
    folded = [line[:end].strip() for line in lines]
    assert name in "".join(folded) and "1" in folded and len(lines) <= 20
