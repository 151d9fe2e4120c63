"""How much two records may differ: not at all, or by what stands in the verdict's constants."""

import json
from math import inf, nan
from statistics import pstdev
from typing import Any

import pytest

from hotlap.lab.run_checks import (
    SeedLosses,
    check_hyperparameters,
    check_losses,
    check_seeds,
)
from hotlap.lab.verdict import Verdict, judge, repeats_itself
from hotlap.techniques import Numerics
from tests.lab.records import STEPS, record


def states(other: dict[str, Any], **more: Any) -> dict[str, str]:
    """Return the state of each check, and the tier."""
    given = {"claimed": Numerics.EXACT, "plain_repeats": None, **more}
    found = judge(record(), other, **given)
    return {"tier": found.tier, **{check.name: check.state for check in found.checks}}


def test_equal_records_are_exact_and_one_loss_or_weight_makes_them_not() -> None:
    assert states(record())["tier"] == "exact"
    for key, value in (("loss_digests", -1), ("weights", "v")):
        for at in (0, STEPS // 2, STEPS - 1):
            other = record()
            other[key][at] = value
            assert states(other)["tier"] != "exact"


@pytest.mark.parametrize(
    ("key", "value"),
    [("batches", "another"), ("inputs", "another"), ("hyperparameters", '[{"lr": 0.2}]')],
)
def test_equal_weights_are_no_excuse_for_other_batches_or_numbers(key: str, value: str) -> None:
    other = record()
    other[key][20] = value
    found = judge(record(), other, claimed=Numerics.EXACT, plain_repeats=None)
    assert found.tier == "changed"
    assert found.failed == ("hyperparameters" if key == "hyperparameters" else "batches",)


@pytest.mark.parametrize("key", ["weights", "loss_digests", "hyperparameters"])
def test_a_run_that_ended_early_is_not_the_one_that_did_not(key: str) -> None:
    other = record()
    other[key].pop()
    assert states(other)["tier"] != "exact"


@pytest.mark.parametrize("key", ["batches", "loss_digests", "weights"])
def test_a_script_repeats_itself_in_batches_losses_and_weights(key: str) -> None:
    assert repeats_itself(record(), record()) is None
    other = record()
    other[key][7] = "another"
    assert str(repeats_itself(record(), other)).endswith("(first at 8)")
    other = record()
    other[key].pop()
    assert str(repeats_itself(record(), other)).endswith(f"(first at {STEPS})")


@pytest.mark.parametrize(
    ("sigmas", "state"),
    [(0, "passed"), (3, "passed"), (-3, "passed"), (6, "failed"), (-6, "failed")],
)
def test_losses_may_be_off_by_their_noise(sigmas: float, state: str) -> None:
    """Lower as well: labels that leak into the inputs make a loss fall."""
    other = record()
    later = other["losses"][STEPS // 2 :]
    noise = pstdev(later) / len(later) ** 0.5
    other["losses"] = [loss + sigmas * noise for loss in other["losses"]]
    other["loss_digests"][0] = -1
    assert states(other)["losses"] == state


@pytest.mark.parametrize(
    ("worse", "state"),
    [(-0.1, "passed"), (0.0, "passed"), (0.005, "passed"), (0.02, "failed"), (0.5, "failed")],
)
def test_seeds_may_be_worse_by_a_hundredth_of_the_first_loss(worse: float, state: str) -> None:
    plain = [[1.0] * 8 + [0.5 + 0.001 * seed] * 8 for seed in range(4)]
    other = [[*row[:8], *(loss + worse for loss in row[8:])] for row in plain]
    changed = record()
    changed["loss_digests"][0] = -1
    found = states(changed, claimed=Numerics.PRECISION, seeds=SeedLosses(plain, other))
    assert found["seeds"] == state


@pytest.mark.parametrize(
    ("count", "updates", "apart", "state"),
    [
        (7, 7, 1e-6, "passed"),
        (7, 7, 1e-3, "not_made"),
        (8, 8, 1e-3, "passed"),
        (7, 99, 1e-6, "not_made"),
        (1, 1, 0.0, "not_made"),
    ],
)
def test_each_of_a_few_losses_is_compared(
    count: int, updates: int, apart: float, state: str
) -> None:
    plain, other = ({**record(), "weights": [""] * updates} for _ in range(2))
    plain["losses"] = [1.0 - step / 10 for step in range(count)]
    other["losses"] = list(plain["losses"])
    other["losses"][-1] += apart
    assert check_losses(plain, other).state == state
    # One that was not heard under the plan may be another one.
    other["losses"].pop()
    assert count == 8 or check_losses(plain, other).state == "not_made"


@pytest.mark.parametrize("odd", [nan, inf])
def test_losses_that_are_not_finite_are_judged_by_the_plain_runs(odd: float) -> None:
    plain, other = record(), record()
    other["losses"][-1] = odd
    assert check_losses(plain, other).state == "failed"
    plain["losses"][-1] = odd
    assert check_losses(plain, other).state == "not_made"
    assert check_losses(plain, record()).state == "not_made"
    # Where both are not finite at other steps, a finite one was lost.
    other["losses"][-2] = odd
    assert check_losses(plain, other).state == "failed"


@pytest.mark.parametrize("odd", [nan, inf])
def test_seeds_that_are_not_finite_are_judged_by_the_plain_runs(odd: float) -> None:
    def seeds(*ends: float) -> list[list[float]]:
        return [[*[1.0] * 31, end] for end in ends]

    def state(plain: list[list[float]], other: list[list[float]]) -> str:
        return check_seeds(SeedLosses(plain, other)).state

    finite, none = seeds(1.0, 1.0, 1.0), seeds(1.0, odd, 1.0)
    assert state(finite, finite) == "passed"
    assert state(finite, none) == "failed"
    assert state(none, none) == state(none, finite) == "not_made"


def test_a_run_that_is_not_finite_from_the_first_step_on_gets_a_verdict() -> None:
    def none(**changes: Any) -> dict[str, Any]:
        made = record()
        made["losses"] = [nan] * STEPS
        for row in made["followed"]["updates"]:
            row["sums"] = [[nan] * 7]
        for average in made["averages"]:
            average |= {key: [nan] * len(average[key]) for key in ("moved", "doubt", "rest")}
        return made | changes

    def judged(other: dict[str, Any]) -> Verdict:
        return judge(none(), other, claimed=Numerics.EXACT, plain_repeats=None)

    assert judged(none()).tier == "exact"
    other = none(weights=[f"v{step}" for step in range(STEPS)])
    assert judged(other).tier == "unproven"


def run_with_rates(rates: list[float], **more: Any) -> dict[str, Any]:
    numbers = [json.dumps([{"lr": rate, "weight_decay": 0.1}]) for rate in rates]
    return {**record(), "hyperparameters": numbers, **more}


def test_a_held_out_loss_may_decide_otherwise_once_weights_are_rounded_otherwise() -> None:
    plain = run_with_rates([0.1] * 20 + [0.05] * 20)
    rounded = {"weights": [*plain["weights"][:10], *["v"] * 30]}
    later = run_with_rates([0.1] * 30 + [0.05] * 10, **rounded)
    found = check_hyperparameters(plain, later)
    assert found.state == "not_made" and "may have decided it by a loss" in found.evidence
    # Not while the weights are equal, nor with a rate of its own, nor by another number.
    assert check_hyperparameters(plain, {**later, "weights": plain["weights"]}).state == "failed"
    other = run_with_rates([0.1] * 30 + [0.04] * 10, **rounded)
    assert check_hyperparameters(plain, other).state == "failed"
    decayed = [json.dumps([{"lr": 0.1, "weight_decay": 0.2}])] * 40
    assert check_hyperparameters(plain, {**later, "hyperparameters": decayed}).state == "failed"
    # Where nothing changes the rate, no loss does.
    still = run_with_rates([0.1] * 40)
    assert check_hyperparameters(still, later).state == "failed"


def test_a_run_may_stop_early_at_another_step_once_weights_are_rounded_otherwise() -> None:
    plain = {**run_with_rates([0.1] * 40), "steps": 40}
    rounded = {"weights": [*plain["weights"][:10], *["v"] * 20], "steps": 30}
    early = run_with_rates([0.1] * 30, **rounded)
    assert check_hyperparameters(plain, early).state == "not_made"
    # As many steps with fewer updates are no early end.
    assert check_hyperparameters(plain, {**early, "steps": 40}).state == "failed"
    assert (
        check_hyperparameters(plain, {**early, "weights": plain["weights"][:30]}).state == "failed"
    )
