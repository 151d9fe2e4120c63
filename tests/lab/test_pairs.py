"""Races of real processes."""

import time
from pathlib import Path

import pytest

from hotlap.attach.entry import Script
from hotlap.errors import TrialError
from hotlap.lab import pairs
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


def test_an_arm_far_slower_than_the_plain_run_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pairs, "_GIVEN_UP_S", 1.0)
    begin = time.monotonic()
    with (
        Lab(script("--epochs", "1000")) as lab,
        Lab(script("--epochs", "1000", "--fault", "hang_later")) as stuck,
    ):
        arms = [
            Arm("stuck", Plan(), stuck),
            Arm("plain", Plan(), lab),
            Arm("plain again", Plan(), lab),
        ]
        found = race(arms, twins=("plain", "plain again"), rounds=3, turn_s=0.05)
    assert set(found.arms) == {"plain", "plain again"}
    assert arms[0].failed is not None
    assert "30 steps were not done after" in arms[0].failed
    assert arms[0].is_slow
    assert time.monotonic() - begin < 30


def test_a_script_too_short_to_measure_says_so() -> None:
    with Lab(script("--epochs", "2")) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        with pytest.raises(TrialError, match="3 steps, too few"):
            race(arms, twins=("plain", "plain again"), rounds=8, turn_s=0.1, planned_steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("planned", [16, None])
def test_a_script_too_short_for_its_turns_is_started_again(planned: int | None) -> None:
    # Where nobody knows its length, the third turn finds the script at its end.
    epochs = "1" if planned else "4"
    with Lab(script("--epochs", epochs)) as lab:
        arms = [Arm("plain", Plan(), lab), Arm("plain again", Plan(), lab)]
        found = race(
            arms,
            twins=("plain", "plain again"),
            rounds=3,
            turn_s=0.1,
            planned_steps=planned,
            step_ms=2.0 if planned else 10.0,
        )
        assert len(lab.trials) > 2
    assert found.rounds == 3
    assert all(len(arm.turns_ms) == 3 for arm in found.arms.values())
