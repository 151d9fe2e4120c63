"""What a plan fails at sampled steps, a plain run must pass at the same ones."""

from types import SimpleNamespace
from typing import Any

from hotlap.lab.proving import Prover
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.plan import Plan
from hotlap.techniques import Numerics


def test_a_plain_run_is_repeated_at_the_steps_at_which_a_plan_has_failed() -> None:
    asked: list[tuple[Plan, Any]] = []

    def repeat(plan: Plan, *, steps: tuple[int, ...] = (), **_: Any) -> Any:
        asked.append((plan, steps))
        return SampledSteps([{"step": step} for step in steps or (18, 17, 17)]), {}

    prover: Any = object.__new__(Prover)
    prover.base, prover._controls, prover._at_own_places = Plan(), {}, False
    prover._repeat = repeat
    prover._judge = lambda *_, **more: SimpleNamespace(failed=("gradient",), control=more)
    plan = Plan({"optimizer": {"implementation": "fused"}})
    verdict, _, _ = prover._judge_repeated(plan, Numerics.ROUNDING)
    assert asked == [(plan, ()), (Plan(), (17, 18))]
    assert [row["step"] for row in verdict.control["control"].rows] == [17, 18]
    # Once for each choice of steps.
    prover._judge_repeated(plan, Numerics.ROUNDING)
    assert len(asked) == 3
