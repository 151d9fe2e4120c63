"""Planted techniques: each is found out by the check that should see it, and by no accident."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.lab.proving import Prover
from hotlap.lab.trial import Lab
from hotlap.lab.verdict import CHECKS
from hotlap.plan import Plan
from hotlap.techniques import registry

TINY = Path(__file__).parents[1] / "tiny.py"
NAMES = ("DROP", "STALE", "RATE", "SECRET_RATE", "SKIP", "SCALE")
TECHNIQUES = tuple(f"planted:{name}" for name in NAMES)
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


@pytest.mark.parametrize(
    ("name", "seen_by"),
    [
        ("drop", "fed"),
        ("stale", "fed"),
        ("rate", "numbers"),
        ("secret_rate", "update"),
        ("skip", "numbers"),
        ("scale", "gradient"),
    ],
)
def test_a_dishonest_technique_is_found_out_by_its_check(
    prover: Prover, name: str, seen_by: str
) -> None:
    verdict = prover.prove(Plan({name: {}}))
    assert verdict.tier == "changed"
    assert seen_by in verdict.failed


@pytest.mark.parametrize(("name", "seen_by"), [("secret_rate", "update"), ("skip", "numbers")])
def test_with_that_check_switched_off_nothing_else_finds_it(
    prover: Prover, name: str, seen_by: str
) -> None:
    prover.checks = tuple(check for check in CHECKS if check != seen_by)
    try:
        verdict = prover.prove(Plan({name: {}}))
    finally:
        prover.checks = CHECKS
    assert seen_by not in verdict.failed
    assert verdict.tier == "unproven"
