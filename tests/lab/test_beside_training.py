"""Proofs follow what no optimizer updates: teachers, target networks, frozen layers, saves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.lies import LIES, TAUGHT, Lie
from hotlap.attach.entry import Script
from hotlap.lab.proving import Prover
from hotlap.lab.saves_check import check_saves
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import registry
from tests.lab.records import record

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOLD = [lie for lie in LIES if lie.subjects == TAUGHT]
TECHNIQUES = tuple(f"benchmarks.lies_planted:{lie.name.upper()}" for lie in TOLD)
FUSED = Plan({"optimizer": {"implementation": "fused"}})
FAST = "moved_teacher"


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    patch = pytest.MonkeyPatch()
    patch.setenv("PYTHONPATH", str(BENCHMARKS.parent))
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
@pytest.mark.parametrize("kind", ["target_network", "mean_teacher", "momentum_encoder"])
def test_steps_with_a_network_that_no_optimizer_trains_are_repeated(kind: str) -> None:
    script = Script(path="truths_kinds.py", args=(kind,), cwd=str(BENCHMARKS))
    with Lab(script) as lab:
        made = Prover(lab, 60, registry())
        made.run_plain()
        honest = made.prove(FUSED)
    assert honest.tier == "rounding" and "float64 at" in honest.evidence, honest.evidence


def test_saves_are_compared_with_the_plain_runs() -> None:
    plain, rounded = record(), {**record(), "weights": ["other"]}
    assert check_saves(plain, plain).state == "passed"
    # Of other weights the digests say nothing, but some must be those of the model.
    other_bits = {**rounded, "saves": [[30, 2, "others"]]}
    assert check_saves(plain, other_bits).state == "passed"
    assert check_saves(plain, {**plain, "saves": [[30, 2, "others"]]}).state == "failed"
    assert check_saves(plain, {**rounded, "saves": [[30, 0, "others"]]}).state == "failed"
    assert check_saves(plain, {**rounded, "saves": [[30, 1, "others"]]}).state == "passed"
    # What is best so far may be saved at other times.
    assert check_saves(plain, {**rounded, "saves": []}).state == "partial"
    assert check_saves(plain, {**plain, "saves": []}).state == "failed"
    assert check_saves({**plain, "saves": None}, plain).state == "partial"
    assert check_saves({**plain, "saves": []}, {**plain, "saves": []}).state == "passed"
