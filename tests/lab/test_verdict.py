"""Each check sees its own kind of difference, and a check that was not made proves nothing."""

import json
from typing import Any

import pytest

from hotlap.lab.verdict import CHECKS, judge, repeats_itself
from hotlap.techniques import Numerics

STEPS = 40


def record() -> dict[str, Any]:
    return {
        "fed": [f"batch{i}" for i in range(STEPS)],
        "inputs": [f"input{i}" for i in range(STEPS)],
        "losses": [1.0 + 0.01 * (i % 7) for i in range(STEPS)],
        "loss_digests": list(range(STEPS)),
        "weights": [f"w{i}" for i in range(STEPS)],
        "numbers": [json.dumps([{"lr": 0.1}])] * STEPS,
    }


def repeated(**changes: float) -> list[dict[str, Any]]:
    row = {
        "step": 3,
        "dtype": "float64",
        "gradient_error": 2e-7,
        "gradient_slope": 1.0,
        "plain_error": 2e-7,
        "update_error": 3e-6,
    }
    return [{**row, **changes}]


def rounded() -> dict[str, Any]:
    other = record()
    other["loss_digests"] = [digest + 1000 for digest in other["loss_digests"]]
    other["weights"] = [f"v{i}" for i in range(STEPS)]
    return other


def verdict(other: dict[str, Any], **more: Any) -> Any:
    more = {"claimed": Numerics.ROUNDING, "plain_repeats": None, "reference": repeated(), **more}
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
    reference = repeated(plain_error=7e-6, gradient_error=7e-6 * times)
    assert verdict(rounded(), reference=reference).tier == tier


def planted(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    other, reference = rounded(), repeated()
    if name == "fed":
        other["fed"][20] = "another"
    elif name == "numbers":
        other["numbers"][30] = json.dumps([{"lr": 0.102}])
    elif name == "gradient":
        reference = repeated(gradient_slope=1.001)
    elif name == "update":
        reference = repeated(update_error=5e-4)
    elif name == "losses":
        other["losses"] = [loss + 0.1 for loss in other["losses"]]
    return other, reference


@pytest.mark.parametrize("name", CHECKS)
def test_each_check_sees_its_own_fault_and_no_other_does(name: str) -> None:
    other, reference = planted(name)
    found = verdict(other, reference=reference)
    assert found.tier == "changed"
    assert found.failed == (name,)
    blind = verdict(other, reference=reference, checks=[c for c in CHECKS if c != name])
    assert blind.failed == ()
    assert blind.tier == "unproven"


def test_a_skipped_update_is_seen_though_every_hyperparameter_is_right() -> None:
    other = rounded()
    other["weights"][30] = other["weights"][29]
    assert verdict(other).failed == ("numbers",)


def test_a_missing_repetition_is_unproven_and_says_why() -> None:
    found = verdict(rounded(), reference=[], reference_problem="the batch was no tensor")
    assert found.tier == "unproven"
    assert "the batch was no tensor" in found.evidence


def test_a_script_that_does_not_repeat_itself_proves_nothing_exact() -> None:
    first, second = record(), record()
    second["fed"][5] = "another"
    differs = repeats_itself(first, second)
    assert differs == "batches (first at 6)"
    assert verdict(record(), claimed=Numerics.EXACT, plain_repeats=differs).tier == "unproven"


def test_a_loss_that_is_not_finite_is_a_change() -> None:
    other = rounded()
    other["losses"][-1] = float("nan")
    assert "losses" in verdict(other).failed
