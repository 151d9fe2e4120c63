"""`hotlap diagnose --out`: the JSON document in a file, and no other file lost to it."""

import json
from pathlib import Path

import pytest

from hotlap.cli.diagnose import COMMAND
from hotlap.cli.invoking import invoke
from hotlap.diagnosis.outfiles import check_json
from hotlap.errors import UsageError


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


def test_what_is_written_is_what_json_prints_beside_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "pid": 1, "tid": 1}
    Path("trace.json").write_text(json.dumps({"traceEvents": [event]}))
    assert invoke(COMMAND, ["trace.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert invoke(COMMAND, ["trace.json", "--out", "found.json"]) == 0
    assert "aten::mm" in capsys.readouterr().out
    assert json.loads(Path("found.json").read_text()) == document
