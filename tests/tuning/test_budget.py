"""What a budget affords, and what it is not spent on twice."""

import time
from dataclasses import replace

import pytest

from hotlap.lab.statistics import Ratio
from hotlap.techniques import Numerics
from hotlap.tuning.budget import Budget
from hotlap.tuning.candidates import Candidate, combinations
from hotlap.tuning.racing import arms_that_fit
from hotlap.tuning.time_plan import TimePlan
from tests.tuning import faked


def test_what_does_not_fit_is_not_begun() -> None:
    budget = Budget(100)
    assert budget.affords("a race", 40)
    assert budget.affords("a proof", 90)
    assert not budget.affords("a verdict", 120)
    assert budget.not_reached == ["a verdict (about 120 s, 100 s left)"]


def test_it_names_the_budget_that_would_do() -> None:
    budget = Budget(120)
    assert budget.option == "--budget 2m"
    assert budget.ask(50) == "--budget 3m"
    assert budget.ask(10) == "--budget 3m"
    assert not budget.affords("a proof", 400)
    assert budget.option == "--budget 7m"


def test_what_clearly_slowed_the_run_down_is_not_tried_again() -> None:
    gained = Candidate("resident", {}, Numerics.EXACT)
    hidden = Candidate("optimizer", {"implementation": "fused"}, Numerics.ROUNDING)
    slower = Candidate("threads", {"count": 1}, Numerics.ROUNDING)
    singles = {
        gained: Ratio(2.0, 1.9, 2.1, 8),
        hidden: Ratio(1.0, 0.9, 1.1, 8),
        slower: Ratio(0.7, 0.6, 0.8, 8),
    }
    plans = combinations(singles, [gained], limit=9).values()
    assert any("optimizer" in plan.techniques for plan in plans)
    assert not any("threads" in plan.techniques for plan in plans)


def test_a_proof_is_shortened_to_the_time_that_is_left() -> None:
    planned = TimePlan(1000, False, 0, 0, 2, 4, 4, 3, 13.0, 30.0, start_s=3.0)
    shorter = planned.shorten(8.0, fills=False)
    assert shorter is not None
    assert (shorter.horizon, shorter.fill_ahead) == (500, True)
    assert shorter.prove_s == pytest.approx(8.0) and shorter.prove_narrow_s == pytest.approx(25.0)
    # Filling takes 3 s of it.
    filling = planned.shorten(8.0, fills=True)
    assert filling is not None and filling.horizon == 200
    assert planned.shorten(3.5, fills=False) is None
    late = replace(planned, least_horizon=900)
    assert late.shorten(8.0, fills=False) is None


@pytest.mark.parametrize(
    ("processes", "fits"),
    # By time seven beside the three twins; where no arm has room beside them, each runs alone.
    [(None, 7), (20, 7), (5, 2), (4, 1), (3, 7), (0, 7)],
)
def test_a_race_has_no_more_arms_than_a_devices_memory_holds(
    processes: int | None, fits: int
) -> None:
    made = faked.tuner(seconds=1000, arm_s=9.0)
    made.time_plan = replace(made.time_plan, processes=processes)
    assert arms_that_fit(made, time.monotonic() + 95.0) == fits
