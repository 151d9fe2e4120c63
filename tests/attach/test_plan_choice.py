"""Which plan a run is made under: what is not proven here, of this very file, is not used."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hotlap.attach.entry import Script
from hotlap.attach.plan_choice import PlanChoice, choose, measured_on, plan_path
from hotlap.errors import MissingFile, PlanError
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun
from hotlap.plan import Plan
from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict
from hotlap.techniques import EXACT_PLAN, Numerics, Proof, Technique, registry

PLAN = Plan({"resident": {}, "optimizer": {"implementation": "fused"}})
EXACT_PART = Plan({"resident": {}})
FILE = PlanFile(PLAN, MeasuredOn("this CPU", "2.13.0"), PlanVerdict("rounding", "seen", 343))


def measured(**more: Any) -> PlanFile:
    return replace(FILE, host=MeasuredOn("this CPU", "2.13.0", **more))


def chosen(folder: Path, text: str, **given: Any) -> PlanChoice:
    """Return what is chosen where the tuned plan's file holds this text."""
    script = Script(path="train.py", cwd=str(folder))
    plan_path(script).write_text(text)
    # What is taken by hand is named; the tuned plan is `auto`.
    wanted = str(plan_path(script)) if given.get("by_hand") else "auto"
    usual: dict[str, Any] = {"wanted": wanted, "cpu": "this CPU", "torch": "2.13.0"}
    return choose(script, **(usual | given))


def test_what_was_measured_and_proven_here_is_used(tmp_path: Path) -> None:
    found = chosen(tmp_path, FILE.to_toml())
    assert found.plan == PLAN
    assert "verdict rounding over 343 steps" in found.line
    here = measured_on(replace(Host.detect(), cpu="this CPU", torch="2.13.0"))
    assert here.cores is not None
    assert chosen(tmp_path, replace(FILE, host=here).to_toml()).plan == PLAN


@pytest.mark.parametrize("tier", ["exact", "rounding", "statistical", "unproven", "changed"])
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_plan_that_was_found_to_change_something_or_is_not_proven_is_never_used(
    tier: str, by_hand: bool, tmp_path: Path
) -> None:
    text = replace(FILE, verdict=PlanVerdict(tier, "seen", 343)).to_toml()
    found = chosen(tmp_path, text, by_hand=by_hand)
    if tier in ("unproven", "changed"):
        assert found.plan == Plan()
        assert f"not used: its verdict is `{tier}`" in found.line
    else:
        assert found.plan == PLAN


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        (FILE.to_toml().replace("fused", "foreach"), {}, "it was written or edited by hand"),
        (FILE.to_toml().replace("343\n", "999\n"), {}, "it was written or edited by hand"),
        (FILE.to_toml().split("\n", 1)[1], {}, "it was written or edited by hand"),
        (PlanFile(PLAN, FILE.host).to_toml(), {}, "what was proven"),
        (PlanFile(PLAN, None, FILE.verdict).to_toml(), {}, "where it was measured"),
        (FILE.to_toml(), {"cpu": "that CPU"}, "measured on this CPU, this is that CPU"),
        (FILE.to_toml(), {"torch": "2.14.0"}, "with torch 2.13.0, this is 2.14.0"),
        (measured(cores=10_000).to_toml(), {}, "it was measured on 10000 cores, here are"),
        (measured(gpus="NVIDIA H999").to_toml(), {}, "it was measured with NVIDIA H999, here is"),
    ],
)
@pytest.mark.parametrize("by_hand", [False, True])
def test_of_a_plan_whose_verdict_says_nothing_here_only_exact_techniques_are_used(
    text: str, given: dict[str, str], why: str, by_hand: bool, tmp_path: Path
) -> None:
    exact = (
        EXACT_PART
        if "foreach" not in text
        else PLAN.with_technique("optimizer", implementation="foreach")
    )
    found = chosen(tmp_path, text, by_hand=by_hand, **given)
    assert found.plan == exact
    assert why in found.line
    if exact == EXACT_PART:
        assert "dropped: optimizer" in found.line


def test_a_file_by_hand_is_used_only_by_name_and_only_where_that_is_asked_for(
    tmp_path: Path,
) -> None:
    text = PlanFile(PLAN, measured="").to_toml()
    named = str(plan_path(Script(path="train.py", cwd=str(tmp_path))))
    assert chosen(tmp_path, text, by_hand=True).plan == PLAN
    assert chosen(tmp_path, text, wanted=named).plan == EXACT_PART
    assert chosen(tmp_path, text, wanted="auto", by_hand=True).plan == EXACT_PART


def test_a_plan_that_is_none_is_told_before_anything_starts(tmp_path: Path) -> None:
    for plan in (Plan({"residant": {}}), Plan({"optimizer": {"implementation": "fast"}})):
        with pytest.raises(PlanError, match="is not known"):
            chosen(tmp_path, PlanFile(plan, FILE.host, FILE.verdict).to_toml())


def test_without_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(path="train.py", cwd=str(tmp_path))
    assert choose(script, None, cpu="", torch="").plan == EXACT_PLAN
    empty = PlanFile(Plan(), FILE.host, PlanVerdict("exact", "seen", 0)).to_toml()
    assert "nothing faster than plain was found" in chosen(tmp_path, empty).line
    monkeypatch.setenv("HOTLAP_OFF", "1")
    assert chosen(tmp_path, FILE.to_toml()).plan == Plan()


THREADS = {"resident": {}, "reader_threads": {"count": 2}}


@pytest.mark.parametrize(
    ("cpu", "used"), [("here", {"resident", "reader_threads"}), ("elsewhere", {"resident"})]
)
def test_what_only_a_race_can_show_is_not_taken_from_another_host(
    cpu: str, used: set[str], tmp_path: Path
) -> None:
    path = tmp_path / "fast.toml"
    verdict = PlanVerdict("exact", "for a test", 100)
    PlanFile(Plan(THREADS), host=MeasuredOn(cpu, "2.13"), verdict=verdict).write(path)
    chosen = choose(RecipeRun(path="recipe.py"), str(path), cpu="here", torch="2.13")
    assert set(chosen.plan.techniques) == used
    assert ("dropped: reader_threads" in chosen.line) is (cpu == "elsewhere")


def test_no_plan_at_all_holds_nothing_that_needs_a_race() -> None:
    chosen = choose(RecipeRun(path="recipe.py"), None, cpu="here", torch="2.13")
    assert "reader_threads" not in chosen.plan.techniques


def test_a_plan_written_by_hand_is_taken_for_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "hand.toml"
    path.write_text("schema = 1\n[techniques.reader_threads]\ncount = 2\n")
    recipe = RecipeRun(path="recipe.py")
    chosen = choose(recipe, str(path), cpu="here", torch="2.13", by_hand=True)
    assert set(chosen.plan.techniques) == {"reader_threads"}


def test_the_tuned_plan_lies_beside_its_script_and_each_has_its_own(tmp_path: Path) -> None:
    there = str(tmp_path)
    for script, name in (
        (Script(path="sub/train.py", cwd=there), "sub/train.plan.toml"),
        (Script(path="train", cwd=there), "train.plan.toml"),
        (Script(path="/elsewhere/my.train.py", cwd=there), "/elsewhere/my.train.plan.toml"),
        (Script(module="package.train", cwd=there), "package.train.plan.toml"),
        (RecipeRun(path="recipe.py", cwd=there), "recipe.plan.toml"),
        (Script(path="package", cwd=there), "package.plan.toml"),
        (Script(path=".", cwd=there), f"{tmp_path.name}.plan.toml"),
        (Script(path="sub/../..", cwd=there), f"{tmp_path.parent.name}.plan.toml"),
    ):
        assert plan_path(script) == tmp_path / name


def test_where_nothing_was_tuned_one_is_told_how_to_and_exact_techniques_are_used(
    tmp_path: Path,
) -> None:
    script = Script(path="train.py", args=("--lr", "3"), cwd=str(tmp_path))
    found = choose(script, "auto", cpu="", torch="")
    assert found.plan == EXACT_PLAN
    path = plan_path(script)
    assert f"'{path}' was not found; `hotlap tune train.py --lr 3` writes it" in found.line


def test_a_plan_that_was_named_and_is_not_there_is_an_error_and_not_the_exact_plan(
    tmp_path: Path,
) -> None:
    script = Script(path="train.py", cwd=str(tmp_path))
    for path in (tmp_path / "fast.toml", tmp_path):
        with pytest.raises(MissingFile, match=r"run `hotlap tune SCRIPT` to write one"):
            choose(script, str(path), cpu="", torch="")


def test_the_line_names_the_plan_that_is_used_and_not_the_files(tmp_path: Path) -> None:
    found = chosen(tmp_path, FILE.to_toml(), cpu="that CPU")
    assert found.line.startswith(f"plan {EXACT_PART.hash}: resident (exact techniques of ")
    assert PLAN.hash not in found.line


@dataclass(frozen=True)
class Options:
    pass


def made(name: str, numerics: Numerics) -> Technique:
    return Technique(
        name=name,
        seam="process",
        Options=Options,
        numerics=lambda: numerics,
        apply=lambda target: target,
        proof=lambda: Proof("no_effect", "it does nothing"),
    )


def test_a_technique_from_outside_is_known_where_it_is_named_and_by_its_own_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("outside")
    module.SAFE = made("safe", Numerics.EXACT)  # pyright: ignore[reportAttributeAccessIssue]
    module.RISKY = made("risky", Numerics.ROUNDING)  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "outside", module)
    text = PlanFile(Plan({"safe": {}, "risky": {}}), FILE.host, FILE.verdict).to_toml()
    named = ("outside:SAFE", "outside:RISKY")
    assert registry(named).keys() >= {"safe", "risky"}
    found = chosen(tmp_path, text, techniques=named, cpu="that CPU")
    assert found.plan == Plan({"safe": {}})
    assert chosen(tmp_path, text, techniques=named).plan == Plan({"safe": {}, "risky": {}})
    with pytest.raises(PlanError, match="'risky' is not known"):
        chosen(tmp_path, text, techniques=named[:1])


def test_without_a_plan_one_is_told_of_the_tuned_one(tmp_path: Path) -> None:
    script = Script(path="train.py", cwd=str(tmp_path))
    assert "--plan auto" not in choose(script, None, cpu="", torch="").line
    plan_path(script).write_text("schema = 1\n")
    found = choose(script, None, cpu="", torch="")
    assert found.plan == EXACT_PLAN
    assert f"'{plan_path(script)}' exists: use it with `--plan auto`" in found.line
