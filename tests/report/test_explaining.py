"""Every name has one page; a plan file's page says what was proven, and of what."""

from dataclasses import replace
from pathlib import Path

import pytest

from hotlap import failures
from hotlap.diagnosis.interventions import PAGES as INTERVENTIONS
from hotlap.errors import MissingFile, PlanError, UnknownName
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict, Speedup
from hotlap.report.beliefs import BELIEFS
from hotlap.report.explaining import explain
from hotlap.report.terms import TERMS
from hotlap.rules import registry as rules_registry
from hotlap.techniques import ORDER

FILE = PlanFile(
    Plan({"resident": {}, "optimizer": {"implementation": "fused"}, "compile": {}}),
    MeasuredOn("this CPU", "2.13.0"),
    PlanVerdict("rounding", "fed the same", 343),
    Speedup(2.31, 2.2, 2.41),
    {"resident": "2.1x: items are decoded once"},
)


def test_every_name_of_the_list_has_a_page_of_its_kind() -> None:
    listed = explain(None).text
    for kind, names in (
        ("technique", ORDER),
        ("finding", rules_registry()),
        ("belief", BELIEFS),
        ("intervention", INTERVENTIONS),
        ("term", TERMS),
    ):
        for name in names:
            page = explain(name)
            assert (page.name, page.kind) == (name, kind)
            assert page.text.startswith(f"{name} ({kind})\n\n")
            assert name in listed
    assert explain("PlanError").kind == "error" and "PlanError" in listed


def test_no_two_things_have_one_name() -> None:
    names = [*ORDER, *rules_registry(), *BELIEFS, *INTERVENTIONS, *failures.registry(), *TERMS]
    assert sorted(set(names)) == sorted(names)


def test_a_term_is_found_as_reports_write_it() -> None:
    for written in ("noise floor", "noise-floor", "noise_floor"):
        assert explain(written).name == "noise_floor"


def test_a_techniques_options_say_what_is_allowed_and_what_is_taken() -> None:
    assert "  implementation: foreach or fused\n" in explain("optimizer").text + "\n"
    assert "  none" in explain("channels_last").text.partition("Options:")[2]
    for name in ORDER:
        assert "Options:\n  " in explain(name).text


def test_a_plans_page_says_what_was_measured_and_what_each_technique_claims(tmp_path: Path) -> None:
    path = tmp_path / "fast.plan.toml"
    FILE.write(path)
    page = explain(str(path))
    lines = page.text.splitlines()
    assert page.kind == "plan"
    assert lines[0] == f"Plan {FILE.plan.hash}: {FILE.plan}"
    assert "Speed-up 2.31x (2.20 to 2.41)" in lines
    assert "Verdict rounding over 343 steps: fed the same" in lines
    assert "Measured on this CPU, torch 2.13.0" in lines
    assert any(line.startswith("For `hotlap train` only: compile.") for line in lines)
    assert any(line.startswith("optimizer(implementation=fused): ") for line in lines)
    assert "  2.1x: items are decoded once" in lines
    assert "edited" not in page.text
    # Each line is a fact: on a wide terminal none is joined to another.
    assert page.render(10_000) == page.text


def test_a_plan_that_was_edited_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "edited.toml"
    path.write_text(FILE.to_toml().replace('"fused"', '"foreach"'))
    assert "The file was edited after it was measured" in explain(str(path)).text


def test_a_plan_may_have_any_name_that_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    FILE.write("plan")
    assert explain("plan").kind == "plan"
    # A name that hotlap has is not looked for among the files.
    FILE.write("resident")
    assert explain("resident").kind == "technique"


def test_what_is_not_known_is_answered_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'empty_cache'"):
        explain("empty_cach")
    with pytest.raises(MissingFile, match="was not found"):
        explain(str(tmp_path / "missing.toml"))
    path = tmp_path / "strange.toml"
    replace(FILE, plan=Plan({"residant": {}}), notes={}, measured=None).write(path)
    with pytest.raises(PlanError, match="Did you mean 'resident'"):
        explain(str(path))
