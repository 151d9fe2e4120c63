"""What is kept of micro-batches, and what a run that ran out of memory takes away from it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hotlap.errors import TrialError
from hotlap.host.facts import Host
from hotlap.lab.subject import RecipeRun
from hotlap.plan import Plan
from hotlap.tuning.micro_batches import call
from hotlap.tuning.micro_batches.kept import KeptMicroBatch, kept_micro_batch
from hotlap.tuning.micro_batches.result import MicroBatch, size_given, with_micro_batch
from hotlap.tuning.micro_batches.search import Fit
from hotlap.tuning.micro_batches.trials import measure

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


@pytest.mark.parametrize("memory", [None, 300])
def test_trials_may_hold_what_the_host_has_whatever_they_are_to_fit_into(
    recipe: RecipeRun, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lab(*_: Any, memory_bytes: int, **__: Any) -> Any:
        raise AssertionError(f"{memory_bytes} bytes")

    monkeypatch.setattr(call, "Lab", lab)
    monkeypatch.setattr(call, "available_bytes", lambda: 1000)
    # `memory` may be a GPU's, and is enforced where it is.
    with pytest.raises(AssertionError, match="950 bytes"):
        call.find(recipe, Plan(), read(recipe), memory=memory)


class Trials:
    """Trials of a recipe of 8 samples a step, of which each size fits."""

    facts: ClassVar[dict[str, Any]] = {
        "batch": 8,
        "limit_bytes": 1000,
        "held_bytes": 0,
        "why_not_split": None,
        "device": "cpu",
        "own": 8,
    }

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def fit_whole(self) -> Fit | None:
        return None

    def fit(self, size: int) -> Fit:
        return Fit(size, 100 * size)

    def pace(self, largest: int, seconds: float) -> Any:
        raise TrialError("it ended", reason=self.reason)


def test_sizes_that_cannot_be_timed_together_are_still_found() -> None:
    said: list[str] = []
    trials: Any = Trials("memory")
    found = measure(trials, seconds=1.0, progress=said.append)
    assert (found.largest, found.fastest, found.speedup) == (8, 8, None)
    assert "could not be timed" in said[-1]
    with pytest.raises(TrialError):
        measure(Trials("crashed"), seconds=1.0, progress=said.append)  # type: ignore[arg-type]


def test_the_plan_of_a_size() -> None:
    plan = Plan({"resident": {}, "micro_batch": {"size": 2}})
    assert with_micro_batch(plan, 7, 16, 16).techniques["micro_batch"] == {"size": 7}
    assert with_micro_batch(plan, 16, 16, 16) == Plan({"resident": {}})
    # The task itself splits the step: the whole of it must be asked for.
    assert with_micro_batch(plan, 16, 16, 4).techniques["micro_batch"] == {"size": 16}
    assert FOUND.plan().techniques == {"micro_batch": {"size": 128}}
    assert size_given("auto") is None
    assert size_given("7") == 7
