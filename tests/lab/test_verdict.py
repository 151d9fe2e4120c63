"""Each check sees its own kind of difference, and a check that was not made proves nothing."""

import json
from typing import Any

import pytest

from hotlap.lab.run_checks import SeedLosses, check_batches
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.lab.verdict import CHECKS, judge, repeats_itself
from hotlap.techniques import Numerics
from tests.lab.records import STEPS, record


def repeated(**changes: Any) -> list[dict[str, Any]]:
    row = {
        "step": 3,
        "dtype": "float64",
        "gradient_error": 2e-7,
        "gradient_slope": 1.0,
        "plain_error": 2e-7,
        "update_error": 3e-6,
        "buffers": {"mean": {"error": 1e-6, "plain_error": 1e-6}},
    }
    return [{**row, **changes}]


def rounded() -> dict[str, Any]:
    other = record()
    other["loss_digests"] = [digest + 1000 for digest in other["loss_digests"]]
    other["weights"] = [f"v{i}" for i in range(STEPS)]
    return other


def verdict(other: dict[str, Any], **more: Any) -> Any:
    rows = more.pop("rows", None) or repeated()
    more = {
        "claimed": Numerics.ROUNDING,
        "plain_repeats": None,
        "reference": SampledSteps(rows),
        **more,
    }
    return judge(record(), other, **more)


def test_bit_equal_and_claimed_exact_is_exact() -> None:
    assert verdict(record(), claimed=Numerics.EXACT).tier == "exact"


def test_bit_equal_is_no_better_than_what_is_claimed() -> None:
    assert verdict(record()).tier == "rounding"


def test_honest_rounding_is_rounding() -> None:
    assert verdict(rounded()).tier == "rounding"
    assert verdict(rounded(), claimed=Numerics.EXACT).tier == "rounding"


def test_low_precision_is_not_proven_by_these_checks() -> None:
    assert verdict(rounded(), claimed=Numerics.PRECISION).tier == "unproven"


@pytest.mark.parametrize(("times", "tier"), [(250, "rounding"), (8192, "changed")])
def test_a_naive_sum_is_rounding_and_a_narrower_format_is_not(times: int, tier: str) -> None:
    """Batch norm's channels-last kernel is 250 times less exact, TF32 8,192 times."""
    rows = repeated(plain_error=7e-6, gradient_error=7e-6 * times)
    assert verdict(rounded(), rows=rows).tier == tier


def planted(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    other, reference = rounded(), repeated()
    if name == "batches":
        other["batches"][20] = "another"
    elif name == "hyperparameters":
        other["hyperparameters"][30] = json.dumps([{"lr": 0.102}])
    elif name == "start":
        other["start"] = {**other["start"], "0.bias": [9, True]}
    elif name == "custody":
        other["moved"] = [3]
    elif name == "delivery":
        other["delivered"]["updates"][12] |= {"scale": 1.001, "rest": 0.0, "ceiling": None}
    elif name == "participation":
        other["followed"]["updates"][12]["gradients"] = "gn"
    elif name == "random":
        other["followed"]["updates"][12]["random"][0] = "torch 11"
    elif name == "averages":
        # Every second one is left out.
        other["averages"][0]["moved"][::2] = [0.0] * 19
    elif name == "saves":
        other["saves"] = [[30, 0, "saved", "names"]]
    elif name == "evaluation":
        other["evaluated"].pop()
    elif name == "buffers":
        reference = repeated(buffers={"mean": {"error": 4.0, "plain_error": 1e-6}})
    elif name == "updates":
        other["followed"]["updates"][12]["sums"][0][5] = 1e-12
    elif name == "gradient":
        reference = repeated(gradient_slope=1.001)
    elif name == "update":
        reference = repeated(update_error=5e-4)
    elif name == "losses":
        other["losses"] = [loss + 0.1 for loss in other["losses"]]
    return other, reference


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_sees_its_own_fault_and_no_other_does(name: str) -> None:
    other, rows = planted(name)
    found = verdict(other, rows=rows)
    assert found.tier == "changed"
    assert found.failed == (name,)
    blind = verdict(other, rows=rows, checks=[c for c in CHECKS if c != name])
    assert blind.failed == ()
    assert blind.tier == "unproven"


def test_a_skipped_update_is_seen_though_every_hyperparameter_is_right() -> None:
    other = rounded()
    other["weights"][30] = other["weights"][29]
    assert verdict(other).failed == ("hyperparameters",)


def test_a_missing_repetition_is_unproven_and_says_why() -> None:
    found = verdict(rounded(), reference=SampledSteps(problem="the batch was no tensor"))
    assert found.tier == "unproven"
    assert "the batch was no tensor" in found.evidence


def test_a_script_that_does_not_repeat_itself_proves_nothing_exact() -> None:
    first, second = record(), record()
    second["batches"][5] = "another"
    differs = repeats_itself(first, second)
    assert differs == "batches (first at 6)"
    assert verdict(record(), claimed=Numerics.EXACT, plain_repeats=differs).tier == "unproven"


def test_a_loss_that_is_not_finite_is_a_change() -> None:
    other = rounded()
    other["losses"][-1] = float("nan")
    assert "losses" in verdict(other).failed


# What each check rests on, on records that are wrong in one thing.


def test_bit_equal_weights_from_other_batches_are_a_change() -> None:
    other = record()
    other["batches"][20] = "another"
    assert verdict(other, claimed=Numerics.EXACT).failed == ("batches",)


def test_other_model_inputs_from_the_same_batches_are_a_change() -> None:
    other = rounded()
    other["inputs"][20] = "another"
    assert verdict(other).failed == ("batches",)


def test_an_input_that_may_follow_from_the_weights_proves_nothing() -> None:
    plain = {**record(), "inputs_at": list(range(STEPS))}
    other = {**rounded(), "inputs_at": list(range(STEPS))}
    other["inputs"][20] = "another"
    more: dict[str, Any] = {"claimed": Numerics.ROUNDING, "plain_repeats": None}
    found = judge(plain, other, reference=SampledSteps(repeated()), **more)
    assert found.tier == "unproven"
    assert "computed from the weights" in found.evidence
    # Before the weights differ, or without batches to go by, nothing else can explain it.
    other["weights"][:20] = plain["weights"][:20]
    assert judge(plain, other, reference=SampledSteps(repeated()), **more).failed == ("batches",)
    blind = {**plain, "batches": []}, {**rounded(), "batches": [], "inputs": other["inputs"]}
    assert judge(*blind, reference=SampledSteps(repeated()), **more).failed == ("batches",)


@pytest.mark.parametrize("key", ["batches", "inputs"])
def test_one_batch_more_is_read_ahead_and_two_are_a_change(key: str) -> None:
    other = rounded()
    other[key].append("ahead")
    assert verdict(other).tier == "rounding"
    other[key].append("more")
    assert verdict(other).failed == ("batches",)
    fewer = rounded()
    del fewer[key][-2:]
    assert verdict(fewer).failed == ("batches",)


@pytest.mark.parametrize(("key", "what"), [("inputs", "batches"), ("batches", "model inputs")])
def test_what_was_compared_of_the_batches_is_told(key: str, what: str) -> None:
    plain = {**record(), key: []}
    found = check_batches(plain, {**record(), key: []}, None)
    assert (found.state, found.evidence) == ("passed", f"{STEPS} {what} have equal digests")


def test_a_run_without_batches_is_unproven() -> None:
    none: dict[str, Any] = {"batches": [], "inputs": []}
    found = judge(
        {**record(), **none},
        {**rounded(), **none},
        claimed=Numerics.ROUNDING,
        plain_repeats=None,
        reference=SampledSteps(repeated()),
    )
    assert found.tier == "unproven"
    assert "no batch was recorded" in found.evidence


def test_equal_to_a_run_that_differs_from_itself_is_not_exact() -> None:
    found = verdict(record(), claimed=Numerics.EXACT, plain_repeats="losses (first at 3)")
    assert found.tier == "rounding"


@pytest.mark.parametrize("slope", [0.999, 1.001])
def test_a_slope_is_off_on_either_side(slope: float) -> None:
    assert verdict(rounded(), rows=repeated(gradient_slope=slope)).failed == ("gradient",)


@pytest.mark.parametrize(("times", "tier"), [(380, "rounding"), (420, "changed")])
def test_how_much_larger_than_the_plain_runs_an_error_may_be(times: int, tier: str) -> None:
    rows = repeated(plain_error=7e-6, gradient_error=7e-6 * times)
    assert verdict(rounded(), rows=rows).tier == tier


@pytest.mark.parametrize(("error", "tier"), [(0.9e-4, "rounding"), (1.1e-4, "changed")])
def test_how_far_an_update_may_be_off(error: float, tier: str) -> None:
    rows = repeated() * 5 + repeated(update_error=error)
    assert verdict(rounded(), rows=rows).tier == tier


def narrow(**changes: Any) -> Any:
    """Judge a plan of a narrower format; `slopes`, `error` and `seeds` may be given."""
    slopes = changes.get("slopes", [1.0 + 1e-4 * (k % 3 - 1) for k in range(48)])
    rows = [
        repeated(gradient_slope=slope, gradient_error=changes.get("error", 4e-3))[0]
        for slope in slopes
    ]
    plain = [[3.0 - 0.01 * step for step in range(32)] for _ in range(changes.get("count", 3))]
    worse = changes.get("worse", [0.0, 1e-3, -1e-3])
    other = [
        [loss + worse[k % 3] for loss in row[: changes.get("steps", 32)]]
        for k, row in enumerate(plain)
    ]
    if changes.get("nan"):
        # As early as it can be: the mean of the later half does not see it.
        other[1][2] = float(changes["nan"])
    seeds = SeedLosses(plain, other)
    return verdict(rounded(), claimed=Numerics.PRECISION, rows=rows, seeds=seeds)


@pytest.mark.parametrize(
    ("changes", "tier", "check"),
    [
        ({}, "statistical", ""),
        ({"error": 0.24}, "statistical", ""),
        ({"error": 0.26}, "changed", "gradient"),
        ({"slopes": [1.0019, 1.002] * 24}, "statistical", ""),
        ({"slopes": [1.0029, 1.003] * 24}, "changed", "gradient"),
        ({"slopes": [0.997, 0.9971] * 24}, "changed", "gradient"),
        ({"slopes": [0.99, 1.01] * 24}, "unproven", "gradient"),
        ({"slopes": [1.0, 1.0001] * 14}, "unproven", "gradient"),
        ({"count": 2}, "unproven", "seeds"),
        ({"steps": 15}, "unproven", "seeds"),
        ({"nan": "inf"}, "changed", "seeds"),
        ({"nan": "nan"}, "changed", "seeds"),
        ({"worse": [0.04, 0.041, 0.039]}, "changed", "seeds"),
        ({"worse": [0.02, 0.021, 0.019]}, "statistical", ""),
        ({"worse": [0.06, 0.0, -0.02]}, "unproven", "seeds"),
        ({"worse": [-0.5, -0.5, -0.5]}, "statistical", ""),
    ],
)
def test_what_a_narrower_format_is_judged_by(
    changes: dict[str, Any], tier: str, check: str
) -> None:
    found = narrow(**changes)
    assert found.tier == tier, found.evidence
    if check:
        assert {each.name for each in found.checks if each.state != "passed"} == {check}
