"""What is not taken: a plan that could not be proven, and a gain that only its median shows."""

from typing import Any

import pytest

from hotlap.errors import TrialError
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.tuning import stages
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.proofs import prove_tier
from tests.tuning import faked

RESIDENT = Plan({"resident": {}})


class Failing:
    """A prover whose trials crash."""

    has_plain = True

    def wait_for_plain(self) -> None:
        """It has ended well."""

    def prove(self, plan: Plan) -> Any:
        raise TrialError("`train.py` ended with exit code 1", reason="crashed")


@pytest.mark.parametrize(
    ("tier", "plan"),
    [
        ("exact", RESIDENT),
        ("rounding", Plan({"optimizer": {"implementation": "fused"}})),
        ("statistical", Plan({"master_weights": {}})),
    ],
)
def test_a_plan_whose_proof_crashed_is_not_taken(tier: str, plan: Plan) -> None:
    tuner, final = faked.tuner(accept="statistical"), faked.raced({plan: 2.0})
    prover: Any = Failing()
    names = [name for name, arm in final.arms.items() if arm.plan == plan]
    assert prove_tier(tuner, prover, final, names, tier, []) is None
    assert "ended with exit code 1" in str(tuner.notes.__dict__)


def test_a_median_above_the_floor_is_no_gain_where_its_interval_is_not() -> None:
    alone = Candidate("resident", {}, Numerics.EXACT)
    for wobble, gained in ((0.002, [alone]), (0.3, [])):
        first = faked.raced({RESIDENT: 1.1}, wobble=wobble, rounds=5)
        ratio = first.ratio("resident")
        assert ratio.median > 1 + first.floor
        assert stages.candidates_that_gained({alone: ratio}, first) == gained
