"""A real diagnosis, and the rules that it starts from."""

import json
import mmap
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hotlap
from hotlap.attach.entry import Script
from hotlap.errors import MissingFile, UsageError
from hotlap.lab.observing import watch
from hotlap.lab.trial import Lab
from hotlap.rules import nominate
from hotlap.rules import registry as rules_registry
from hotlap.task import LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.trace.paging import Paging
from hotlap.trace.schema import PHASES, Anchor, HotLine, Trace

TINY = Path(__file__).parents[1] / "tiny.py"
LOOPS = TINY.with_name("loops.py")
RECIPE = TINY.with_name("tiny_recipe.py")
FACTS = TaskFacts(
    loaders=(LoaderFacts("d", 100, 10, 0, True, True, True, "a.py:3", "a.py:9", 10),),
    optimizers=(OptimizerFacts("torch.optim.adam.Adam", "default", 4, 99, "a.py:5"),),
)
TRACE = Trace(
    [(2.0, 1.0, 1.0, 0.5, 0.1)] * 10,
    (0,),
    FACTS,
    Anchor("optimizer.step", "high", {}),
    1.0,
    lines=(HotLine("data", "a.py:11", 0.7), HotLine("data", "a.py:3", 0.3)),
)


def diagnosed(*argv: str) -> tuple[dict[str, Any], str]:
    """Return what `hotlap diagnose --json` prints, and its progress."""
    done = subprocess.run(
        [sys.executable, "-m", "hotlap", "diagnose", "--json", *argv],
        capture_output=True,
        text=True,
        cwd=TINY.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def rules_of(trace: Trace) -> list[str]:
    return [nomination.rule for nomination in nominate(trace)]


def test_the_rules_name_the_line_and_the_most_it_can_cost() -> None:
    decode, optimizer = nominate(TRACE)
    assert (decode.rule, decode.where, decode.at_most_ms) == ("per_item_decode", "a.py:11", 2.0)
    assert (optimizer.rule, optimizer.where) == ("slow_optimizer", "a.py:5")


def test_what_takes_no_time_is_not_nominated() -> None:
    fast = replace(TRACE, steps=[(0.01, 1.0, 1.0, 0.01, 0.1)] * 10)
    assert rules_of(fast) == []


def test_what_the_script_does_already_is_not_nominated() -> None:
    (loader,), (optimizer,) = FACTS.loaders, FACTS.optimizers
    busy = replace(
        FACTS,
        loaders=(replace(loader, num_workers=2),),
        optimizers=(replace(optimizer, implementation="fused"),),
    )
    assert rules_of(replace(TRACE, facts=busy)) == ["slow_data"]


def test_pages_are_counted_from_the_tenth_step_on() -> None:
    paging = Paging()
    for number in range(14):
        # Far more than the heap holds: mapped, written to and unmapped.
        size = 64 if number >= 10 else 512
        bytearray(size * 2**20)
        paging.step_ends()
    faults, system_share = paging.step_means()
    assert 64 * 2**20 / mmap.PAGESIZE * 0.9 < faults < 64 * 2**20 / mmap.PAGESIZE * 2
    assert 0 < system_share < 1.5
    assert Paging().step_means() == (0, 0)


def test_every_rule_has_its_page() -> None:
    for name, rule in rules_registry().items():
        why = "Why it matters" if rule.kind == "mistake" else "Why it costs"
        for heading in ("What it sees", why, "What to do", "Evidence"):
            assert heading in rule.page, (name, heading)


def test_whole_epochs_are_averaged_with_what_comes_between_them() -> None:
    steps = [(1.0, 0.0, 0.0, 0.0, 0.0)] * 21
    steps[10] = (1.0, 0.0, 0.0, 0.0, 10.0)
    trace = replace(TRACE, steps=steps, epoch_starts=(0, 10, 20))
    assert trace.covers_whole_periods
    assert trace.phase_means()["other"] == pytest.approx(10 / 20)
    assert trace.step_ms()["median"] == 1.0


def test_a_real_diagnosis_says_all_that_it_promises() -> None:
    found, progress = diagnosed("--budget", "10s", str(TINY), "--epochs", "3000")
    is_short = any("no cost was measured" in note for note in found["notes"])
    # On a busy machine the budget may do for turns of fresh processes only, or for nothing.
    is_raced = "switched between steps" in progress or "in turns with" in progress
    assert is_raced or is_short
    assert set(found["phases"]) == set(PHASES)
    assert sum(found["phases"].values()) == pytest.approx(found["step_ms"]["mean"], rel=0.03)
    assert set(found["step_ms"]) == {"median", "mean", "low", "high", "n"}
    assert "h2d" not in found["phases"]
    assert found["anchor"]["confidence"] == "high"
    keys = {"rule", "kind", "cost_ms", "at_most_ms", "where", "evidence", "remedy", "numerics"}
    for finding in found["findings"]:
        assert keys <= set(finding)
        assert finding["where"].startswith("tiny.py:")
    costs = [finding["cost_ms"] for finding in found["findings"]]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.slow
def test_a_run_of_nine_steps_tells_its_length_its_phases_and_its_lines() -> None:
    found, progress = diagnosed("--budget", "5s", str(LOOPS), "while", "9")
    assert found["planned_steps"] == 9
    assert sum(found["phases"].values()) > 0
    assert "after a start that may take" in progress
    assert found["lines"] or any("no lines were sampled" in note for note in found["notes"])


def test_an_optimizer_that_is_made_in_each_epoch_takes_its_steps() -> None:
    script = Script(path=str(LOOPS), args=("renewed", "40"), cwd=str(LOOPS.parent))
    with Lab(script) as lab:
        seen = watch(lab, seconds=30)
    assert len(seen.trace.steps) == seen.trace.facts.planned_steps == 40
    assert len(seen.trace.facts.optimizers) == 1


def test_no_more_steps_are_timed_than_were_asked_for() -> None:
    script = Script(path=str(LOOPS), args=("while", "3000"), cwd=str(LOOPS.parent))
    with Lab(script) as lab:
        seen = watch(lab, seconds=30, steps=70)
    assert len(seen.trace.steps) <= 70


@pytest.mark.parametrize(
    ("subject", "more", "words"),
    [
        ("missing.py", {}, "'missing.py' was not found"),
        (str(TINY), {"arguments": {"epochs": 1}}, "a list of command-line arguments"),
        (str(TINY), {"device": "cpu"}, "chooses its device itself"),
        (str(RECIPE), {"arguments": ["--epochs", "1"]}, "a dict of the parameters"),
        (str(TINY), {"budget": 0}, "a finite number of seconds above 0"),
        (3, {}, "was given a value of type int"),
    ],
)
def test_hotlap_diagnose_refuses_what_it_cannot_run(
    subject: Any, more: dict[str, Any], words: str
) -> None:
    with pytest.raises((UsageError, MissingFile), match=words):
        hotlap.diagnose(subject, **more)


@pytest.mark.slow
def test_a_recipe_is_diagnosed_under_the_empty_plan() -> None:
    found, progress = diagnosed("--budget", "25s", str(RECIPE), "--epochs", "50")
    assert found["is_recipe"] and "is a recipe" in progress
    assert found["noise_floor"] is not None
    assert any(line["where"].startswith("tiny_recipe.py:") for line in found["lines"])
    seen = [*found["findings"], *found["suspects"]]
    named = {row["rule"] for row in seen} | {row.split(" at ")[0] for row in found["ruled_out"]}
    assert "per_item_decode" in named


@pytest.mark.slow
def test_data_that_nobody_can_keep_are_the_cause_all_the_same() -> None:
    found, _ = diagnosed("--budget", "45s", str(LOOPS), "made", "1000")
    (finding,) = [row for row in found["findings"] if row["rule"] == "per_item_decode"]
    assert finding["where"].startswith("loops.py:")
    assert finding["at_most_ms"] > 0.5 * found["step_ms"]["mean"]


@pytest.mark.slow
def test_a_slow_optimizer_with_sparse_gradients_is_the_cause() -> None:
    found, _ = diagnosed("--budget", "45s", str(LOOPS), "sparse", "3000")
    (finding,) = [row for row in found["findings"] if row["rule"] == "slow_optimizer"]
    assert finding["plan"] == {} and finding["where"].startswith("loops.py:")


@pytest.mark.slow
@pytest.mark.parametrize("habit", ["wrapped", "counted"])
def test_a_model_in_data_parallel_is_suspected_and_not_measured(habit: str) -> None:
    found, _ = diagnosed("--budget", "5s", str(LOOPS), habit, "400")
    rows = [row for row in found["suspects"] if row["rule"] == "data_parallel"]
    assert len(rows) == (habit == "wrapped")
    for row in rows:
        assert row["where"].startswith("loops.py:")
        assert "its cost on several devices was not measured" in row["evidence"]
        assert "torchrun --nproc_per_node 2" in row["remedy"]
    assert not [row for row in found["findings"] if row["rule"] == "data_parallel"]


@pytest.mark.slow
def test_steps_of_a_second_end_within_a_few_seconds_of_the_budget() -> None:
    begin = time.monotonic()
    found, _ = diagnosed("--budget", "20s", str(LOOPS), "slow", "90")
    assert time.monotonic() - begin < 20 + 15
    assert found["step_ms"]["median"] > 1000
    assert any(line["phase"] == "other" for line in found["lines"])
