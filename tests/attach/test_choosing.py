"""What of a plan is used where it was not measured."""

from pathlib import Path

import pytest

from hotlap.attach.choosing import choose
from hotlap.lab.recipes import RecipeRun
from hotlap.plan import MeasuredOn, Plan, PlanFile, PlanVerdict

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
    assert ("without reader_threads" in chosen.line) is (cpu == "elsewhere")


def test_no_plan_at_all_holds_nothing_that_needs_a_race() -> None:
    chosen = choose(RecipeRun(path="recipe.py"), None, cpu="here", torch="2.13")
    assert "reader_threads" not in chosen.plan.techniques


def test_a_plan_written_by_hand_is_taken_for_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "hand.toml"
    path.write_text("schema = 1\n[techniques.reader_threads]\ncount = 2\n")
    recipe = RecipeRun(path="recipe.py")
    chosen = choose(recipe, str(path), cpu="here", torch="2.13", by_hand=True)
    assert set(chosen.plan.techniques) == {"reader_threads"}
