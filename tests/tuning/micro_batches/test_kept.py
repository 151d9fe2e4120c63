"""What is kept of micro-batches, and what a run that ran out of memory takes away from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun
from hotlap.plan import Plan
from hotlap.tuning.micro_batches import call
from hotlap.tuning.micro_batches.kept import KeptMicroBatch, kept_micro_batch
from hotlap.tuning.micro_batches.result import MicroBatch, size_given, with_micro_batch
from hotlap.tuning.micro_batches.search import Fit

HOST = Host(cpu="x", cores=2, torch="2.13")
FOUND = MicroBatch(
    batch=512,
    device="cpu",
    limit_bytes=1000,
    largest=384,
    fastest=128,
    speedup=2.0,
    trials=(Fit(128, 400), Fit(384, 990), Fit(385, 1000, why="no memory")),
    rates={64: 50.0, 128: 100.0, 384: 50.0},
    own=512,
)
KEPT = replace(FOUND, is_kept=True)


@pytest.fixture
def recipe(tmp_path: Path) -> RecipeRun:
    path = tmp_path / "recipe.py"
    path.write_text("import hotlap")
    return RecipeRun(path=str(path), cwd=str(tmp_path))


def read(recipe: RecipeRun, plan: Plan | None = None, **options: Any) -> KeptMicroBatch:
    host = options.pop("host", HOST)
    return kept_micro_batch(recipe, plan or Plan(), host, **{"memory": None, **options})


def test_the_same_question_has_the_same_answer(recipe: RecipeRun) -> None:
    assert read(recipe).usable is None
    read(recipe).keep(FOUND, [recipe.path])
    assert read(recipe).usable == KEPT
    # Of a plan its own micro-batches do not matter.
    assert read(recipe, Plan({"micro_batch": {"size": 3}})).usable == KEPT


@pytest.mark.parametrize(
    "other",
    [
        {"memory": 2**30},
        {"again": True},
        {"plan": Plan({"resident": {}})},
        {"host": replace(HOST, torch="2.14")},
        {"host": replace(HOST, cores=4)},
    ],
)
def test_another_question_is_measured(recipe: RecipeRun, other: dict[str, Any]) -> None:
    read(recipe).keep(FOUND, [recipe.path])
    assert read(recipe, **other).usable is None


def test_other_arguments_and_an_edited_recipe_are_measured(recipe: RecipeRun) -> None:
    read(recipe).keep(FOUND, [recipe.path])
    assert read(replace(recipe, args=("--width", "3"))).usable is None
    Path(recipe.path).write_text("import hotlap  # edited")
    assert read(recipe).usable is None


def test_a_damaged_file_is_none(recipe: RecipeRun) -> None:
    kept = read(recipe)
    kept.keep(FOUND, [recipe.path])
    kept.path.write_text(kept.path.read_text()[:-20])
    assert read(recipe).usable is None


def test_what_ran_out_of_memory_in_a_run_is_not_used_again(recipe: RecipeRun) -> None:
    kept = read(recipe)
    kept.keep(FOUND, [recipe.path])
    kept.keep_too_large(384)
    found = read(recipe).usable
    assert found is not None
    assert (found.largest, found.fastest) == (128, 128)
    kept.keep_too_large(128)
    # No size that is left was tried under the limit.
    assert read(recipe).usable is None
    assert read(recipe).too_large == 128
    # What was larger than that says nothing new.
    kept.keep_too_large(400)
    assert read(recipe).too_large == 128


def test_with_less_memory_than_it_needs_it_is_measured_again(
    recipe: RecipeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured")

    monkeypatch.setattr(call, "Lab", measured)
    read(recipe).keep(FOUND, [recipe.path])
    assert call.find(recipe, Plan(), read(recipe), memory=None) == KEPT
    monkeypatch.setattr(call, "available_bytes", lambda: 399)
    with pytest.raises(AssertionError, match="measured"):
        call.find(recipe, Plan(), read(recipe), memory=None)


def test_the_plan_of_a_size() -> None:
    plan = Plan({"resident": {}, "micro_batch": {"size": 2}})
    assert with_micro_batch(plan, 7, 16, 16).techniques["micro_batch"] == {"size": 7}
    assert with_micro_batch(plan, 16, 16, 16) == Plan({"resident": {}})
    # The task itself splits the step: the whole of it must be asked for.
    assert with_micro_batch(plan, 16, 16, 4).techniques["micro_batch"] == {"size": 16}
    assert FOUND.plan().techniques == {"micro_batch": {"size": 128}}
    assert size_given("auto") is None
    assert size_given("7") == 7
