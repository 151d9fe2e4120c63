"""Each tensor is judged by itself, as finely as the format lets one see."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest

from hotlap.lab.proving import draw_steps
from hotlap.lab.sampled_steps import (
    SampledSteps,
    check_gradient,
    check_mean_gradient,
    confirm_failure,
)
from hotlap.lab.script_repetition import problem_of_samples
from hotlap.lab.update_check import check_update


@pytest.mark.parametrize(
    ("steps_at", "updates", "hidden"),
    [
        (range(16), 16, 0),
        (range(0, 96, 6), 96, 0),
        # A second model is trained after the first: the last step has all of its updates.
        (range(16), 496, 481),
        ([*range(10), *range(40, 50)], 80, 62),
        # A network that is warmed up for some steps.
        ([*range(0, 200, 100), *range(200, 1400, 6)], 1400, 0),
    ],
)
def test_updates_in_steps_that_are_hardly_sampled_are_not_proven(
    steps_at: Sequence[int], updates: int, hidden: int
) -> None:
    record = {"steps_at": [*steps_at], "weights": [""] * updates, "samples": [], "not_sampled": ""}
    problem = problem_of_samples(record, 0)
    assert problem.startswith(f"{hidden} of the {updates} updates") == bool(hidden), problem
    assert bool(problem) == bool(hidden)


def tensor(size: float, off: float, plain: float, **more: float) -> dict[str, Any]:
    made = {"size": size, "off": off, "plain": plain, "own": off, "own_size": size}
    return {**made, "dot": size**2, "count": 1000, **more}


def row(small: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a row whose second tensor is far smaller than the whole."""
    made = {"dtype": "float64", "gradient_error": 2e-7, "gradient_slope": 1.0, "plain_error": 2e-7}
    large = tensor(1.0, 2e-7, 2e-7)
    return {**made, "update_error": 0.0, "tensors": {"large": large, "small": small}, **more}


FROZEN = {"dot": 0.0}
CASES = {
    "honest": (tensor(1e-3, 2e-10, 2e-10), "passed"),
    "a naive sum": (tensor(1e-3, 6e-8, 2e-10), "passed"),
    "frozen": (tensor(1e-3, 1e-3, 2e-10, **FROZEN), "failed"),
    "frozen and tiny": (tensor(1e-9, 1e-9, 2e-16, **FROZEN), "failed"),
    "scaled": (tensor(1e-3, 3e-6, 2e-10, dot=1.003e-6), "failed"),
    "smaller": (tensor(1e-3, 3e-6, 2e-10, dot=0.997e-6), "failed"),
    "of another shape": (tensor(1e-3, float("inf"), 2e-10, **FROZEN), "failed"),
    "exactly zero, and rounded otherwise": (tensor(1e-17, 1e-7, 1e-8, dot=1e-20), "passed"),
    "exactly zero, and something": (tensor(1e-17, 1e-3, 1e-8, dot=0.0), "failed"),
    "zero on both sides": (tensor(0.0, 0.0, 0.0, dot=0.0), "passed"),
    "trained, though the plain run does not": (tensor(0.0, 1e-3, 0.0, dot=0.0), "failed"),
    "noise": (tensor(1e-3, 1e-3, 1e-3), "not_made"),
    "noise that is the plain script's own": (tensor(1e-3, 1e-3, 1e-3, own=0.0), "passed"),
    "rounded much": (tensor(1e-3, 1e-3, 1e-5), "not_made"),
    "frozen, and rounded much": (tensor(1e-3, 1e-3, 1e-5, **FROZEN), "failed"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_tensor_among_others(name: str) -> None:
    small, state = CASES[name]
    found = check_gradient(SampledSteps([row(small)] * 6))
    assert found.state == state, found.evidence
    assert ("`small`" in found.evidence) == (state != "passed")


def test_what_happens_now_and_then_is_seen() -> None:
    frozen, honest = row(CASES["frozen"][0]), row(CASES["honest"][0])
    assert check_gradient(SampledSteps([frozen, honest] * 3)).state == "failed"
    assert check_gradient(SampledSteps([frozen, honest, honest] * 2)).state == "failed"
    # One unit that rounds to the other side of zero.
    assert check_gradient(SampledSteps([frozen, *[honest] * 5])).state == "passed"
    visible = row(CASES["honest"][0], gradient_error=0.02, gradient_slope=1.01)
    assert check_gradient(SampledSteps([visible, *[honest] * 5])).state == "passed"
    tripled = row(CASES["honest"][0], gradient_error=2.0, gradient_slope=3.0)
    assert check_gradient(SampledSteps([tripled, *[honest] * 5])).state == "failed"
    # Other gradients by a few percent take two steps, those within reach of a unit more.
    larger = row(CASES["honest"][0], gradient_error=0.2, gradient_slope=1.2)
    assert check_gradient(SampledSteps([larger, *[honest] * 5])).state == "passed"
    assert check_gradient(SampledSteps([larger, larger, *[honest] * 4])).state == "failed"
    assert check_gradient(SampledSteps([visible, visible, *[honest] * 4])).state == "passed"
    assert check_gradient(SampledSteps([visible, honest] * 3)).state == "failed"
    own = {**tripled, "own_error": 0.0}
    assert check_gradient(SampledSteps([own, *[honest] * 5])).state == "passed"


def test_a_gradient_may_be_that_of_the_plain_step_in_the_plans_layout() -> None:
    def rows(own: float, off: float, plain: float) -> SampledSteps:
        """Return steps that are off by `off`, in that layout by `plain`, and from it by `own`."""
        small, large = tensor(1e-3, off * 1e-3, 2e-10), tensor(1.0, off, 2e-7)
        laid_out = {
            "plain_error": plain,
            "own_error": own,
            "tensors": {
                "small": tensor(1e-3, off * 1e-3, plain * 1e-3, own=own * 1e-3),
                "large": tensor(1.0, off, plain, own=own),
            },
        }
        found = row(small, gradient_error=off, laid_out=laid_out)
        return SampledSteps([{**found, "tensors": {"large": large, "small": small}}] * 6)

    assert check_gradient(rows(own=0.0, off=5e-3, plain=5e-3)).state == "passed"
    # Threads share its sums otherwise.
    assert check_gradient(rows(own=6e-3, off=4e-3, plain=5e-3)).state == "passed"
    assert check_gradient(rows(own=5e-3, off=5e-3, plain=1e-4)).state == "failed"


def test_a_narrow_gradient_that_is_another_one_now_and_then_is_seen() -> None:
    honest = [row(CASES["honest"][0], gradient_slope=1 + 1e-5 * (k % 2)) for k in range(47)]
    assert check_mean_gradient(SampledSteps([honest[0], *honest])).state == "passed"
    other = {**honest[0], "gradient_error": 1.4}
    assert check_mean_gradient(SampledSteps([other, *honest])).state == "failed"


@pytest.mark.parametrize("plain", [2e-7, 0.4])
def test_a_gradient_that_is_not_finite_once_is_a_change(plain: float) -> None:
    odd = {"off": inf, "own": inf, "dot": 0.0, "lost": 1}
    honest = row(CASES["honest"][0], plain_error=plain)
    lost = {**honest, "tensors": {"small": {**CASES["honest"][0], **odd}}}
    lost |= {"gradient_error": inf, "own_error": inf, "lost": 1}
    found = check_gradient(SampledSteps([lost, *[honest] * 5]))
    assert found.state == "failed" and "not finite where the plain run's is" in found.evidence
    # In the layout of the plan the plain step is not finite either.
    small = {**CASES["honest"][0], **odd, "own": 0.0, "plain": inf}
    laid_out = {"own_error": 0.0, "plain_error": inf, "lost": 0, "tensors": {"small": small}}
    assert check_gradient(SampledSteps([{**lost, "laid_out": laid_out}] * 6)).state != "failed"


def test_a_script_whose_own_gradients_are_not_finite_fails_nothing() -> None:
    odd = {"off": inf, "plain": inf, "own": inf, "lost": 0}
    other = row({**CASES["honest"][0], **odd}, gradient_error=inf, plain_error=inf, lost=0)
    assert check_gradient(SampledSteps([other] * 6)).state == "not_made"
    same = row({**CASES["honest"][0], **odd, "own": 0.0}, own_error=0.0, gradient_error=inf)
    tensors = {"small": same["tensors"]["small"]}
    assert check_gradient(SampledSteps([{**same, "tensors": tensors}] * 6)).state == "passed"


def test_a_narrow_gradient_that_is_not_finite_is_a_change_unless_the_scripts_is_neither() -> None:
    honest = [row(CASES["honest"][0], gradient_slope=1 + 1e-5 * (k % 2)) for k in range(47)]
    lost = {**honest[0], "gradient_error": inf, "lost": 2, "narrow_lost": 0}
    found = check_mean_gradient(SampledSteps([lost, *honest]))
    assert found.state == "failed" and "not finite" in found.evidence
    own = {**lost, "narrow_lost": 2, "narrow_error": inf}
    assert check_mean_gradient(SampledSteps([own, *honest])).state == "not_made"
    # A gradient in another shape is infinitely far off as well.
    other = {**honest[0], "gradient_error": inf, "narrow_error": 1e-3}
    assert check_mean_gradient(SampledSteps([other, *honest])).state == "failed"


def test_noise_in_the_plain_repetition_is_unproven_and_never_a_change() -> None:
    honest = CASES["honest"][0]
    noisy = row(honest, gradient_error=0.5, gradient_slope=0.9, plain_error=0.4)
    found = check_gradient(SampledSteps([noisy] * 6))
    assert found.state == "not_made"
    assert "plain run's own" in found.evidence
    assert check_gradient(SampledSteps([{**noisy, "plain_error": 2e-7}] * 6)).state == "failed"
    assert check_gradient(SampledSteps([{**noisy, "own_error": 0.0}] * 6)).state == "passed"


def test_each_optimizer_is_judged_by_itself() -> None:
    honest = CASES["honest"][0]
    rows = [row(honest, optimizer=0)] * 6 + [row(honest, optimizer=1, gradient_slope=1.01)] * 5
    assert check_gradient(SampledSteps(rows)).state == "failed"


def test_what_fails_for_the_plain_run_as_well_says_nothing() -> None:
    failed = check_gradient(SampledSteps([row(CASES["frozen"][0])] * 6))
    passed = check_gradient(SampledSteps([row(CASES["honest"][0])] * 6))
    assert confirm_failure(failed, passed) is failed
    assert confirm_failure(failed, failed).state == "not_made"
    assert "plain run's own steps" in confirm_failure(failed, failed).evidence
    assert confirm_failure(passed, failed) is passed
    missing = check_gradient(SampledSteps(problem="it broke"))
    assert confirm_failure(failed, missing).state == "not_made"


def test_a_tensor_that_no_longer_learns_is_seen_in_a_narrower_format() -> None:
    def rows(slope: float) -> list[dict[str, Any]]:
        small = [
            tensor(1e-3, 1e-4, 0.0, dot=(slope + 0.01 * (k % 3 - 1)) * 1e-6) for k in range(48)
        ]
        return [
            row(each, gradient_slope=1 + 1e-5 * (k % 2), gradient_error=4e-3)
            for k, each in enumerate(small)
        ]

    assert check_mean_gradient(SampledSteps(rows(1.0))).state == "passed"
    found = check_mean_gradient(SampledSteps(rows(0.0)))
    assert found.state == "failed"
    assert "`small`" in found.evidence


def test_an_update_of_one_tensor_is_judged_by_itself() -> None:
    def once(error: float) -> dict[str, Any]:
        return {**row(CASES["honest"][0]), "updates": {"large": 1e-6, "small": error}}

    def rows(error: float) -> SampledSteps:
        return SampledSteps([once(error)] * 6)

    assert check_update(rows(1e-5)).state == "passed"
    assert check_update(rows(1.0)).state == "failed"
    assert "`small`" in check_update(rows(1.0)).evidence
    assert check_update(SampledSteps([once(1.0), *[once(1e-5)] * 5])).state == "failed"
    assert check_update(SampledSteps([once(1e-3), *[once(1e-5)] * 5])).state == "passed"
    # A row of a table, say, that is not updated.
    assert check_update(SampledSteps([once(1e-3), once(1e-3), *[once(1e-5)] * 4])).state == "failed"


def test_a_fallback_and_how_the_steps_were_drawn_are_in_the_evidence() -> None:
    rows = [{**row(CASES["honest"][0]), "dtype": "float32"}] * 6
    words = check_gradient(SampledSteps(rows, fallback="it broke", drawn="seed 7")).evidence
    assert "float32 (not float64: it broke) at 6 sampled steps (seed 7)" in words


def test_against_float32_an_exact_zero_may_be_rounded_otherwise() -> None:
    """The bias before a batch norm: both gradients are rounding, of which the reference has none
    of its own to compare with."""
    for size, off, state in (
        (5e-6, 7e-6, "passed"),
        (5e-6, 1e-3, "failed"),
        (1e-3, 1e-4, "failed"),
    ):
        rows = [row(tensor(size, off, 0.0), dtype="float32", plain_error=0.0)] * 6
        assert check_gradient(SampledSteps(rows, fallback="it broke")).state == state, size


def test_steps_are_drawn_in_neighbouring_pairs_that_nobody_can_compute() -> None:
    drawn = [draw_steps(6, 300, seed) for seed in range(2000)]
    assert draw_steps(6, 300, 5) == drawn[5]
    assert len(set(drawn)) > 1900
    for steps in drawn:
        assert len(set(steps)) == 6
        assert list(steps) == sorted(steps)
        assert [b - a for a, b in zip(steps[::2], steps[1::2], strict=True)] == [1, 1, 1]
        assert steps[0] >= 1
        assert steps[-1] <= 298
    # Every step that may be drawn is, and no part of the run is left out.
    assert {step for steps in drawn for step in steps} > set(range(5, 295))
    assert all(any(s <= 100 for s in steps) and any(s > 190 for s in steps) for steps in drawn)
    assert draw_steps(6, 3, 1) == ()
    assert draw_steps(6, 4, 1) == (1, 2)
    assert len(draw_steps(48, 50, 1)) == 48


def test_an_optimizer_whose_updates_cannot_be_repeated_is_not_forgotten() -> None:
    repeated = {"optimizer": 0, "update_error": 0.0, "updates": {}}
    found = check_update(SampledSteps([repeated, {"optimizer": 1, "update_error": None}]))
    assert found.state == "not_made" and "optimizer 2" in found.evidence
    both = [repeated, {**repeated, "optimizer": 1}, {"optimizer": 1, "update_error": None}]
    assert check_update(SampledSteps(both)).state == "passed"


def test_the_state_after_an_update_is_the_plain_optimizers() -> None:
    def rows(*errors: float) -> SampledSteps:
        return SampledSteps(
            [
                {"update_error": 0.0, "updates": {"a": 0.0}, "states": {"a": {"exp_avg": error}}}
                for error in errors
            ]
        )

    assert check_update(rows(*[1e-7] * 6)).state == "passed"
    # One that nearly cancels out is off by more of itself, once.
    assert check_update(rows(1e-3, *[1e-7] * 5)).state == "passed"
    found = check_update(rows(*[1e-3] * 6))
    assert found.state == "failed" and "the state after it is not" in found.evidence
    assert check_update(rows(1.0, *[1e-7] * 5)).state == "failed"
    assert (
        check_update(SampledSteps([{"update_error": 0.0, "states": {"a": {}}}])).state == "passed"
    )
