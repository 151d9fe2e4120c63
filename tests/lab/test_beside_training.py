"""Proofs follow what no optimizer updates: teachers, target networks, frozen layers, saves."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.lies import LIES, NORMALIZING, TAUGHT, Lie
from hotlap.attach.entry import Script
from hotlap.lab.auxiliary_checks import check_evaluation
from hotlap.lab.check import Check
from hotlap.lab.proving import Prover
from hotlap.lab.run_checks import check_bits
from hotlap.lab.saves_check import check_saves
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import registry
from hotlap.trial.not_read import not_read_words
from tests.lab.records import record

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOLD = [lie for lie in LIES if lie.subjects == TAUGHT]
TECHNIQUES = tuple(f"benchmarks.lies_planted:{lie.name.upper()}" for lie in TOLD)
FUSED = Plan({"optimizer": {"implementation": "fused"}})
FAST = "moved_teacher"
BETWEEN = "shrink", "scaled_average", "average_buffers"


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(BENCHMARKS.parent), prepend=os.pathsep)
    script = Script(path="lies_taught.py", args=("--epochs", "1000"), cwd=str(BENCHMARKS))
    with Lab(script, techniques=TECHNIQUES) as lab:
        made = Prover(lab, 40, registry(TECHNIQUES))
        made.run_plain()
        assert made.differs is None
        yield made
    patch.undo()


@pytest.mark.parametrize(
    "lie", [pytest.param(lie, marks=[] if lie.name == FAST else pytest.mark.slow) for lie in TOLD]
)
def test_what_changes_beside_the_training_is_found_out(prover: Prover, lie: Lie) -> None:
    # The smallest size that the benchmark tells.
    found = prover.prove(Plan({lie.name: {"size": min(lie.sizes)}}))
    assert found.tier == "changed" and {*found.failed} & {*lie.meant}, found.evidence


@pytest.mark.slow
def test_what_a_script_moves_itself_excuses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCHMARKS.parent), prepend=os.pathsep)
    told = [lie for lie in LIES if {*NORMALIZING} & {*lie.subjects} and lie.name in BETWEEN]
    techniques = tuple(f"benchmarks.lies_planted:{lie.name.upper()}" for lie in told)
    script = Script(path="lies_normalizing.py", args=("--epochs", "1000"), cwd=str(BENCHMARKS))
    with Lab(script, techniques=techniques) as lab:
        made = Prover(lab, 40, registry(techniques))
        made.run_plain()
        honest = made.prove(FUSED)
        assert honest.tier == "rounding", honest.evidence
        assert "other weights, between updates" in {limit.of for limit in honest.limits}
        for lie in told:
            found = made.prove(Plan({lie.name: {"size": min(lie.sizes)}}))
            assert found.tier == "changed" and {*found.failed} & {*lie.meant}, found.evidence


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["target_network", "mean_teacher", "momentum_encoder", "new_data_sets", "drawn_batches"],
)
def test_steps_that_need_more_than_a_model_and_one_loader_are_repeated(kind: str) -> None:
    script = Script(path="truths_kinds.py", args=(kind,), cwd=str(BENCHMARKS))
    with Lab(script) as lab:
        made = Prover(lab, 60, registry())
        made.run_plain()
        honest = made.prove(FUSED)
    assert honest.tier == "rounding" and "float64 at" in honest.evidence, honest.evidence


def test_saves_of_bit_equal_weights_are_compared_in_all_they_hold() -> None:
    plain = record()
    found = check_saves(plain, plain)
    assert found.state == "passed"
    for row in ([30, 2, "others", "names"], [30, 1, "saved", "names"]):
        assert check_saves(plain, {**plain, "saves": [row]}).state == "failed"
    # Seconds, or bytes in use.
    assert check_saves(plain, {**plain, "saves": [[30, 2, "saved", "others"]]}).state == "partial"
    assert check_saves(plain, {**plain, "saves": []}).state == "failed"
    # Two plain runs differ in all of it, or in numbers such as the time.
    assert check_saves({**plain, "saves": None}, plain).state == "partial"
    timed = {**plain, "saves": [[30, 2, "saved", None]]}
    assert check_saves(timed, plain).state == "partial"
    assert check_saves(timed, {**plain, "saves": [[30, 2, "others", "names"]]}).state == "failed"
    # A loss in evaluation was rounded otherwise.
    rounded = {**plain, "saves": [[30, 2, "saved", "others"]], "evaluated": []}
    assert check_saves(plain, rounded).state == "partial"
    unread = {**plain, "saves": [[30, 0, "saved", "names" + not_read_words({"own.Kind"})]]}
    found = check_saves(unread, unread)
    assert found.state == "partial" and "own.Kind" in found.evidence
    nothing = {**plain, "saves": []}
    assert check_saves(nothing, nothing).state == "passed"


def test_saves_of_rounded_weights_must_hold_what_was_trained() -> None:
    plain = {**record(), "saves": [[10, 2, "a", "a"], [20, 2, "b", "b"]]}
    rounded = {**plain, "weights": ["other"], "saves": [[10, 2, "c", "c"], [20, 2, "d", "d"]]}
    assert check_saves(plain, rounded).state == "passed"
    fewer = {**rounded, "saves": [[10, 1, "c", "c"], [20, 0, "d", "d"]]}
    assert check_saves(plain, fewer).state == "failed"
    # What was best so far may be saved at other times, or be another one.
    older = {**rounded, "saves": [[10, 2, "c", "c"], [20, 0, "d", "d"]]}
    assert check_saves(plain, older).state == "partial"
    assert check_saves(plain, {**rounded, "saves": [[10, 2, "c", "c"]]}).state == "partial"
    assert check_saves(plain, {**rounded, "saves": []}).state == "failed"


def test_forwards_without_gradients_in_training_mode_are_compared_at_equal_weights() -> None:
    def check(plain: Any, other: Any) -> Check:
        return check_evaluation(plain, other, None, is_narrow=False, claims_exact=True)

    plain = {**record(), "without_gradients": [[-1, 10, "in", "out"], [-1, 20, "in", "out"]]}
    assert check(plain, plain).state == "passed"
    other = {**plain, "without_gradients": [[-1, 10, "in", "out"], [-1, 20, "in", "others"]]}
    assert check(plain, other).state == "failed"
    assert check_bits(plain, other, None).state == "failed"
    assert check(plain, {**plain, "without_gradients": []}).state == "failed"
    assert check({**plain, "without_gradients": None}, other).state == "partial"
    # From the 15th update on the weights are rounded otherwise.
    weights = [*plain["weights"][:14], *["other"] * 26]
    found = check(plain, {**other, "weights": weights})
    assert found.state == "partial" and "what 1 forwards without gradients" in found.evidence
    early = {**plain, "without_gradients": [[-1, 10, "in", "others"], [-1, 20, "in", "out"]]}
    assert check(plain, {**early, "weights": weights}).state == "failed"
    # A plan that rounds may do so in a forward before any weight differs.
    found = check_evaluation(plain, {**early, "weights": weights}, None, is_narrow=False)
    assert found.state == "partial"
