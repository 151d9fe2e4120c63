"""Recipes in a lab: honest techniques are proven, planted ones found out, each by its own check."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotlap.errors import TrialError, UsageError
from hotlap.lab import proving, verdict
from hotlap.lab.arm import Arm
from hotlap.lab.observing import watch
from hotlap.lab.process_race import race
from hotlap.lab.proving import Prover
from hotlap.lab.sampled_steps import LEAST_SLOPES, SampledSteps
from hotlap.lab.subject import RecipeRun
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import STATISTICAL_CHECKS, Verdict, judge
from hotlap.plan import Plan
from hotlap.techniques import registry

TINY = Path(__file__).parents[1] / "tiny_recipe.py"
NAMES = ("DROP", "RATE", "SKIP", "SECRET_RATE", "SCALE", "FREEZE", "NARROW", "BIASED")
MORE = ("SMALLER_START", "SHRINK", "SECRET_RATE_AND_NARROW", "DROPOUT_AT_TIMES")
TECHNIQUES = tuple(f"planted:{name}" for name in (*NAMES, *MORE))
SEEN_BY = {
    "drop": "batches",
    "rate": "hyperparameters",
    "skip": "hyperparameters",
    "secret_rate": "update",
    "scale": "delivery",
    "freeze": "gradient",
    "narrow": "gradient",
    "biased": "gradient",
    "secret_rate_and_narrow": "update",
    "smaller_start": "start",
    "shrink": "custody",
    "dropout_at_times": "random",
}
FAST = ("drop", "rate")
"""The others are found out in scripts, and in recipes by `make test-all`."""


def recipe(*args: str) -> RecipeRun:
    return RecipeRun(path=str(TINY), args=args, cwd=str(TINY.parent))


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    folder = str(Path(__file__).parent)
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    patch.syspath_prepend(folder)
    with Lab(recipe("--epochs", "20"), techniques=TECHNIQUES) as lab:
        # Drawn steps may leave a verdict open, as is said of it; here they are the same each time.
        made = Prover(lab, 120, registry(TECHNIQUES), seed=1)
        made.run_plain()
        assert made.differs is None
        yield made
    patch.undo()


class Judged:
    """The last thing that was judged, to be judged again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        monkeypatch.setattr(proving, "judge", self)

    def __call__(self, *args: Any, **more: Any) -> Verdict:
        self.given = args, more
        return judge(*args, **more)

    def again(self, **changes: Any) -> Verdict:
        args, more = self.given
        return judge(*args, **{**more, **changes})


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in SEEN_BY]
)
def test_a_dishonest_technique_is_found_out_by_its_check_and_by_no_accident(
    prover: Prover, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Judged(monkeypatch)
    found = prover.prove(Plan({name: {}}))
    assert found.tier == "changed"
    assert SEEN_BY[name] in found.failed
    blind = judged.again(checks=[c for c in STATISTICAL_CHECKS if c != SEEN_BY[name]])
    assert SEEN_BY[name] not in blind.failed
    assert blind.tier in ("changed", "unproven")


def test_narrow_weights_are_statistical_and_that_rests_on_each_check(
    prover: Prover, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Judged(monkeypatch)
    found = prover.prove(Plan({"master_weights": {}, "resident": {}}))
    assert found.tier == "statistical", found.evidence
    assert {check.name for check in found.checks} == set(STATISTICAL_CHECKS)
    assert found.horizon_steps == 120
    for name in STATISTICAL_CHECKS:
        checks = [check for check in STATISTICAL_CHECKS if check != name]
        assert judged.again(checks=checks).tier == "unproven"
    assert judged.given[1]["reference"].fallback == ""
    few = judged.given[1]["reference"].rows[: LEAST_SLOPES - 1]
    assert {row["dtype"] for row in few} == {"float64"}
    assert judged.again(reference=SampledSteps(few)).tier == "unproven"
    larger = [{**row, "gradient_slope": row["gradient_slope"] + 0.01} for row in few * 2]
    assert judged.again(reference=SampledSteps(larger)).failed == ("gradient",)
    seeds = judged.given[1]["seeds"]
    worse = [[loss + 0.1 for loss in row] for row in seeds.other]
    assert "seeds" in judged.again(seeds=verdict.SeedLosses(seeds.plain, worse)).failed
    assert not list(prover.lab.exchange.glob("step-*")), "a sample was left"


@pytest.mark.slow
def test_a_split_step_is_fed_the_same_and_is_rounding(prover: Prover) -> None:
    found = prover.prove(Plan({"micro_batch": {"size": 5}}))
    assert found.tier == "rounding", found.evidence


AVERAGING = """
import dataclasses
import sys

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

sys.path.insert(0, {folder!r})
import tiny_recipe


def averaging(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer.register_step_post_hook(lambda *_: average.update_parameters(model))
    return optimizer


def task(*, epochs: int = 20):
    return dataclasses.replace(tiny_recipe.task(epochs=epochs), optimizer=averaging)
"""


@pytest.mark.slow
def test_an_average_of_a_recipe_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(folder)
    file = tmp_path / "averaging.py"
    file.write_text(AVERAGING.format(folder=str(TINY.parent)))
    planted = ("planted:AVERAGES",)
    with Lab(RecipeRun(path=str(file), cwd=str(tmp_path)), techniques=planted) as lab:
        made = Prover(lab, 60, registry(planted))
        made.run_plain()
        honest = made.prove(Plan({"resident": {}}))
        assert honest.tier == "exact" and honest.covers["averages"] == 1
        found = made.prove(Plan({"averages": {}}))
    assert found.tier == "changed" and found.failed == ("averages",)


@pytest.mark.slow
def test_a_recipe_is_watched_and_raced_for_longer_than_it_is() -> None:
    with Lab(recipe("--epochs", "2", "--batch-size", "64")) as lab:
        seen = watch(lab, seconds=20)
        assert seen.trace.facts.planned_steps == 8
        assert seen.trace.facts.steps_per_epoch == 4
        assert seen.trace.facts.layers["Linear"] == 2
        assert list(seen.trace.epoch_starts) == [0, 4]
        phases = seen.trace.phase_means()
        assert phases["data"] > 0 and phases["optimizer"] > 0
        assert phases["forward"] > 0 and phases["backward"] > 0
        arms = [
            Arm("plain", Plan(), lab),
            Arm("resident", Plan({"resident": {}}), lab),
            Arm("plain again", Plan(), lab),
        ]
        found = race(arms, twins=("plain", "plain again"), rounds=4, turn_s=0.05)
    assert found.rounds * found.steps_per_turn > 8
    assert found.arms["resident"].techniques[0]["state"] == "applied"


@pytest.mark.parametrize(
    ("argv", "kind", "words"),
    [
        (["--accumulate=-1"], UsageError, "Expected: an integer of"),
        (["--fault", "crash"], TrialError, "the recipe crashes"),
    ],
)
def test_what_is_wrong_with_a_recipe_comes_out_as_what_it_is(
    argv: list[str], kind: type[Exception], words: str
) -> None:
    with Lab(recipe(*argv)) as lab, pytest.raises(kind, match=words):
        watch(lab, seconds=5)
