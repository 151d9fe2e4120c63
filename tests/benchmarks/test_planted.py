"""Scripts with known problems: the index fits them, and what is found is counted right."""

import ast
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import planted
from benchmarks.planted_index import CORRECTED, SCRIPTS, Planted, read_index
from hotlap.host.facts import Host
from hotlap.rules import registry

HOST = Host(cpu="x", cores=2)
EVERY = read_index()
LOOP = "for i in range(len(target)):"


def found(rule: str, where: str, share: float = 0.5) -> dict[str, Any]:
    return {"rule": rule, "where": where, "evidence": "", "remedy": "", "share": share}


def report(**lists: list[dict[str, Any]]) -> dict[str, Any]:
    return {"step_ms": 2.0, "findings": [], "suspects": [], "mistakes": [], **lists}


def line_of(name: str, text: str) -> int:
    lines = [line.strip() for line in EVERY[name].script.read_text().splitlines()]
    return lines.index(text) + 1


def test_there_are_enough_scripts_of_each_kind() -> None:
    kinds = Counter(each.kind for each in EVERY.values())
    assert kinds["slow"] >= 26 and kinds["mistake"] >= 17 and kinds["clean"] >= 12
    assert sum(kinds.values()) == len(EVERY) == len(list(SCRIPTS.glob("*.py")))


@pytest.mark.parametrize("name", EVERY)
def test_the_index_fits_the_script(name: str) -> None:
    each = EVERY[name]
    ast.parse(each.script.read_text())
    assert set(each.rules) <= set(registry())
    assert len(each.line_numbers()) == len(each.lines)
    if each.kind == "clean":
        assert not each.lines and not each.problem
    else:
        assert each.lines and each.problem
        ast.parse(each.corrected.read_text())
        assert each.corrected.read_text() != each.script.read_text()


@pytest.mark.parametrize("folder", [SCRIPTS, CORRECTED])
def test_scripts_name_neither_rules_nor_hotlap(folder: Path) -> None:
    words = re.compile(rf"\b({'|'.join(['hotlap', 'planted', *registry()])})\b")
    told = [path.name for path in folder.glob("*.py") if words.search(path.read_text())]
    assert not told


def test_a_line_that_is_not_in_the_script_is_an_error_of_the_index() -> None:
    wrong = Planted("churn_mlp", "slow", lines=("for j in range(len(target)):",))
    with pytest.raises(ValueError, match="occurs 0 times"):
        wrong.line_numbers()


def test_what_is_planted_is_found_by_its_rule_or_by_its_line() -> None:
    each = Planted("churn_mlp", "slow", "x", ("metrics_loop",), (LOOP,))
    at = line_of("churn_mlp", LOOP)
    other = found("slow_optimizer", f"churn_mlp.py:{at + 1}")
    assert each.rank([]) is None
    assert each.rank([other, found("x", f"other.py:{at}"), found("x", "unknown")]) is None
    assert each.rank([other, found("metrics_loop", "churn_mlp.py:1")]) == 2
    assert each.rank([found("x", f"churn_mlp.py:{at}"), other]) == 1


def test_the_table_counts_what_was_found_first_and_what_it_promised() -> None:
    each = EVERY["churn_mlp"]
    first = found("x", f"churn_mlp.py:{line_of('churn_mlp', LOOP)}", share=0.3)
    other = found("slow_optimizer", "churn_mlp.py:1", share=0.4)
    pairs = [(10.0, 5.0), (12.0, 6.0)]
    records: list[tuple[Planted, dict[str, Any]]] = [
        (each, {"report": report(findings=findings), "pairs": pairs, "errors": []})
        for findings in ([first], [other, first], [other], [])
    ]
    result = planted._summed_up(records)
    assert result.figures["found first"] == 0.25
    assert result.figures["found at any place"] == 0.5
    # 0.3 of a step was promised, and 0.5 is saved.
    assert result.figures["median of |promised / realized - 1|"] == pytest.approx(0.4)
    assert [row["its place"] for row in result.rows] == [1, 2, "missed", "missed"]
    assert not result.failed


def test_what_is_reported_of_clean_and_corrected_scripts_is_counted() -> None:
    small, large = found("x", "a.py:1", share=0.09), found("x", "a.py:2", share=0.11)
    at = f"gears_mlp.py:{line_of('gears_mlp', EVERY['gears_mlp'].lines[0])}"
    result = planted._summed_up(
        [
            (EVERY["wells_mlp"], {"report": report(findings=[large, small]), "errors": []}),
            (
                EVERY["gears_mlp"],
                {
                    "report": report(mistakes=[found("x", at)]),
                    "corrected_report": report(mistakes=[small]),
                    "errors": [],
                },
            ),
            (EVERY["wells_mlp"], {"errors": ["died"]}),
        ]
    )
    assert result.figures["findings above 10% on clean scripts"] == 1
    assert result.figures["mistakes found"] == 1
    assert result.figures["mistakes reported of corrected scripts"] == 1
    assert result.failed and "not measured: wells_mlp" in result.notes


def test_what_a_file_holds_of_the_same_texts_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planted, "_diagnosed", lambda *_: pytest.fail("it was measured"))
    out = tmp_path / "rows.jsonl"
    row = {"name": "wells_mlp", "digest": EVERY["wells_mlp"].digest, "errors": []}
    out.write_text(json.dumps(row | {"report": report()}) + "\n")
    argv = ["--only", "wells_mlp", "--out", str(out), "--resume"]
    assert planted.run(argv, quick=False, host=HOST).figures["clean scripts"] == 1

    measured: list[Path] = []
    monkeypatch.setattr(
        planted, "_diagnosed", lambda script, _budget: measured.append(script) or report()
    )
    for change in ({"digest": "another"}, {"errors": ["died"]}):
        out.write_text(json.dumps(row | {"report": report()} | change) + "\n")
        planted.run(argv, quick=False, host=HOST)
    assert measured == [EVERY["wells_mlp"].script] * 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--only", "wels_mlp"], "Did you mean 'wells_mlp'?"),
        (["--budget", "soon"], "--budget 'soon' is not a duration"),
        (["--resume"], "Add --out"),
        (["--out", __file__], "Add --resume"),
        (["--pairs", "0"], "Allowed: 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        planted.run(argv, quick=False, host=HOST)
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_script_of_each_part_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    names = ("churn_mlp", "gears_mlp", "wells_mlp")
    argv = [word for name in names for word in ("--only", name)]
    argv += ["--budget", "5s", "--out", str(out)]
    result = planted.run(argv, quick=True, host=HOST)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["name"], row["errors"]) for row in rows] == [(name, []) for name in names]
    assert not result.failed
    [(planted_ms, corrected_ms)] = rows[0]["pairs"]
    assert planted_ms > 0 and corrected_ms > 0


@pytest.mark.slow
def test_a_script_that_ends_too_soon_is_said_to_have_no_pace() -> None:
    with pytest.raises(RuntimeError, match="ended before step"):
        planted._pace_ms(EVERY["curve_lbfgs"].script, 10_000)
