"""Races of real processes."""

from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab.pairs import Arm, race
from hotlap.lab.trial import Lab
from hotlap.plan import Plan

TINY = Path(__file__).parents[1] / "tiny.py"


def script(*args: str) -> Script:
    return Script(path=str(TINY), args=args, cwd=str(TINY.parent))


def test_arms_take_turns_and_a_failing_plan_is_left_out_with_its_reason() -> None:
    with Lab(script("--epochs", "1000")) as lab, Lab(script("--fault", "crash")) as broken:
        arms = [
            Arm("plain", Plan(), lab),
            Arm("resident", Plan({"resident": {}}), lab),
            Arm("broken", Plan(), broken),
            Arm("plain again", Plan(), lab),
        ]
        found = race(arms, twins=("plain", "plain again"), rounds=4, turn_s=0.05)
    assert set(found.arms) == {"plain", "plain again", "resident"}
    assert all(len(arm.turns_ms) == found.rounds == 4 for arm in found.arms.values())
    assert found.floor >= 0.02
    assert found.arms["resident"].techniques[0]["state"] == "applied"
    assert arms[2].failed is not None


def test_a_script_too_short_to_measure_says_so() -> None:
    with Lab(script("--epochs", "2")) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        with pytest.raises(TrialError, match="32 steps, which is too short"):
            race(arms, twins=("plain", "plain again"), rounds=8, turn_s=0.1, planned_steps=32)
