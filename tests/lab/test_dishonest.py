"""Planted techniques: each is found out by the check that should see it, and by no accident."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.proving import SAMPLES, Prover, draw_steps
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import CHECKS, Verdict
from hotlap.plan import Plan
from hotlap.techniques import registry

TINY = Path(__file__).parents[1] / "tiny.py"
NAMES = ("DROP", "STALE", "RATE", "SECRET_RATE", "SKIP", "SCALE", "NARROW")
OF_THE_CHAIN = ("SMALLER_START", "SHRINK", "MOMENTS")
AT_TIMES = ("RATE_AT_TIMES", "SECRET_RATE_AT_TIMES", "GRADIENT_AT_TIMES")
OF_A_FORMAT = ("OPEN_NARROW", "NOISY_NARROW", "BIASED")
TECHNIQUES = tuple(f"planted:{name}" for name in (*NAMES, *OF_THE_CHAIN, *AT_TIMES, *OF_A_FORMAT))
HORIZON = 120


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    folder = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *([before] if before else [])])
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(folder)
    script = Script(path=str(TINY), args=("--epochs", "20"), cwd=str(TINY.parent))
    with Lab(script, techniques=TECHNIQUES) as lab:
        made = Prover(lab, HORIZON, registry(TECHNIQUES))
        made.run_plain()
        assert made.differs is None
        yield made
    patch.undo()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


SEEN_BY = {
    "drop": "batches",
    "stale": "batches",
    "rate": "hyperparameters",
    "rate_at_times": "hyperparameters",
    "secret_rate": "updates",
    "secret_rate_at_times": "updates",
    "gradient_at_times": "delivery",
    "skip": "updates",
    "scale": "delivery",
    "narrow": "gradient",
    "smaller_start": "start",
    "shrink": "custody",
    "moments": "custody",
}


AT_TIMES_ONLY = ("rate_at_times", "secret_rate_at_times", "gradient_at_times")
"""In each 50th step, beside which other steps are sampled: one check alone sees them."""
FAST = (
    "drop",
    "rate_at_times",
    "secret_rate",
    "secret_rate_at_times",
    "gradient_at_times",
    "narrow",
    "smaller_start",
    "shrink",
)
"""One for each check; `make test-all` has them all."""


def seed_beside_what_is_skipped() -> int:
    """Return a seed whose sampled steps are far from each 50th."""
    return next(
        seed
        for seed in range(1000)
        if all(2 < step % 50 < 47 for step in draw_steps(SAMPLES, HORIZON, seed))
    )


def is_found_out(verdict: Verdict, name: str) -> bool:
    return verdict.tier == "changed" and SEEN_BY[name] in verdict.failed


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in SEEN_BY]
)
def test_a_dishonest_technique_is_found_out_by_its_check(prover: Prover, name: str) -> None:
    assert is_found_out(prover.prove(Plan({name: {}})), name)


@pytest.mark.parametrize("name", AT_TIMES_ONLY)
@pytest.mark.slow
def test_what_one_check_alone_sees_is_unproven_without_it(
    prover: Prover, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prover, "checks", tuple(c for c in CHECKS if c != SEEN_BY[name]))
    # A sampled step that was left out would be seen by another check, too.
    monkeypatch.setattr(prover, "seed", seed_beside_what_is_skipped())
    verdict = prover.prove(Plan({name: {}}))
    # No other check sees these at all, and what was not checked is not proven.
    assert verdict.tier == "unproven"
    assert not is_found_out(verdict, name)


def test_each_check_of_a_script_has_a_fast_test_that_rests_on_it() -> None:
    assert {SEEN_BY[name] for name in FAST} == {*SEEN_BY.values()}


@pytest.mark.slow
def test_a_narrower_format_in_a_script_is_statistical(prover: Prover) -> None:
    honest = prover.prove(Plan({"open_narrow": {}}))
    assert honest.tier == "statistical", honest.evidence
    assert "over 3 seeds" in honest.evidence
    assert len({tuple(losses) for losses in prover._plain_seeds}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noisy_narrow", "biased"])
def test_what_a_format_does_not_explain_is_a_change(prover: Prover, name: str) -> None:
    found = prover.prove(Plan({name: {}}))
    assert found.tier == "changed"
    assert found.failed == ("gradient",)
