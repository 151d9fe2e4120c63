"""What lies beside the step: buffers, evaluation; and what a verdict says that it covers."""

from math import inf, nan
from typing import Any

import pytest

from hotlap.lab.auxiliary_checks import (
    check_averages,
    check_buffers,
    check_evaluation,
    check_outputs,
)
from hotlap.lab.check import Check
from hotlap.lab.coverage import covers, limits, not_checked
from hotlap.lab.delivery import DELIVERY_LIMIT
from hotlap.lab.sampled_steps import SampledSteps
from hotlap.lab.verdict import judge
from hotlap.techniques import Numerics
from tests.lab.records import averaged, record


def rows(error: float, plain: float = 1e-6) -> SampledSteps:
    return SampledSteps([{"buffers": {"mean": {"error": error, "plain_error": plain}}}] * 6)


@pytest.mark.parametrize(
    ("error", "plain", "is_narrow", "state"),
    [
        (1e-6, 1e-6, False, "passed"),
        (4.0, 1e-6, False, "failed"),
        (0.1, 1e-6, False, "failed"),
        (0.1, 1e-6, True, "passed"),
        (4.0, 1e-6, True, "failed"),
        # The plain step itself is not repeated any better.
        (4.0, 0.5, False, "partial"),
    ],
)
def test_buffers_are_judged_by_what_a_step_changes(
    error: float, plain: float, is_narrow: bool, state: str
) -> None:
    assert check_buffers(rows(error, plain), is_narrow=is_narrow).state == state


@pytest.mark.parametrize("odd", [nan, inf])
def test_what_is_no_number_is_a_change_unless_the_plain_run_has_it_too(odd: float) -> None:
    assert check_buffers(rows(odd), is_narrow=False).state == "failed"
    assert check_buffers(rows(odd, odd), is_narrow=False).state == "partial"
    sampled = SampledSteps(evaluations=[{"error": odd, "plain_error": 1e-7}])
    assert check_outputs(sampled, is_narrow=False).state == "failed"
    assert check_outputs(repeated(odd, odd), is_narrow=False).state == "not_made"


@pytest.mark.parametrize("key", ["moved", "rest", "doubt"])
@pytest.mark.parametrize("odd", [nan, inf])
def test_an_average_that_is_no_number_is_a_change(key: str, odd: float) -> None:
    plain, other = record(), record()
    other["averages"][0][key][5] = odd
    # What nobody can tell of one update says nothing.
    expected = "passed" if (key, odd) == ("doubt", inf) else "failed"
    assert check_averages(plain, other).state == expected
    # In the plain run it is no number either.
    plain["averages"][0][key][5] = odd
    assert check_averages(plain, other).state == "passed"


def test_buffers_that_one_step_leaves_out_are_a_change() -> None:
    row = {"buffers": {"mean": {"error": 1e-6, "plain_error": 1e-6}}}
    once = {"buffers": {"mean": {"error": 1.0, "plain_error": 1e-6}}}
    assert check_buffers(SampledSteps([row] * 5 + [once]), is_narrow=False).state == "failed"


def test_no_repeated_step_says_nothing_of_buffers() -> None:
    found = check_buffers(SampledSteps(problem="no tensors"), is_narrow=False)
    assert found.state == "not_made" and "no tensors" in found.evidence
    assert check_buffers(SampledSteps([{"buffers": {}}]), is_narrow=False).state == "passed"


def evaluated(rows: list[list[Any]], **more: Any) -> dict[str, Any]:
    weights = [f"v{number}" for number in range(40)]
    return {**record(), "weights": weights, "evaluated": rows, **more}


OTHER_OUTPUT = [[0, 10, "in", "x"], [0, 20, "in", "x"]]
OTHER_INPUT = [[0, 10, "x", "x"], [0, 20, "x", "x"]]


def repeated(error: float, plain_error: float = 1e-7, count: int = 2) -> SampledSteps:
    return SampledSteps(evaluations=[{"error": error, "plain_error": plain_error}] * count)


def test_evaluation_at_equal_weights_gives_the_same() -> None:
    other = evaluated(OTHER_OUTPUT)
    for error, plain_error, state in (
        (1e-7, 1e-7, "passed"),
        (1.0, 1e-7, "failed"),
        (1.0, 0.5, "not_made"),
    ):
        sampled = repeated(error, plain_error)
        assert check_evaluation(record(), other, sampled, is_narrow=False).state == state
    nothing = check_evaluation(record(), other, SampledSteps(problem="no step"), is_narrow=False)
    assert nothing.state == "not_made"


def test_evaluation_is_made_at_the_same_times_and_of_the_same() -> None:
    sampled = repeated(1e-7)
    fewer = evaluated(OTHER_OUTPUT[:1])
    assert check_evaluation(record(), fewer, sampled, is_narrow=False).state == "failed"
    # Its input may have been computed from weights that are rounded otherwise...
    plain = {**record(), "evaluated": [[0, 10, "in", "out"], [0, 20, "in too", "out"]]}
    other = evaluated(OTHER_INPUT)
    found = check_evaluation(plain, other, sampled, is_narrow=False)
    assert found.state == "partial" and "the inputs of 2 of 2 forwards are others" in found.evidence
    # ... but not where the weights are the same, nor where the samples are given...
    same = {**other, "weights": plain["weights"]}
    assert check_evaluation(plain, same, sampled, is_narrow=False).state == "failed"
    given = {**plain, "reads_fixed": True}
    assert check_evaluation(given, other, sampled, is_narrow=False).state == "failed"
    # ... nor of a later forward that gets what a loader has handed out, or what was evaluated of
    # other weights before.
    later = evaluated([[0, 10, "in", "x"], [0, 20, "x", "x"]])
    handed = {**plain, "evaluated_batches": [1]}
    for run, state in ((handed, "failed"), (record(), "not_made")):
        found = check_evaluation(run, later, sampled, is_narrow=False)
        assert found.state == state and "(first: forward 2)" in found.evidence
    assert check_evaluation(plain, later, sampled, is_narrow=False).state == "partial"


def test_of_few_movements_none_may_be_off() -> None:
    def moved(*, by: float, times: int) -> dict[str, Any]:
        made = averaged()
        count = len(made["moved"])
        at = {*range(0, count, count // times)}
        made["moved"] = [0.3 if n in at else 0.0 for n in range(count)]
        return {**record(), "averages": [made | {"moved": [v * by for v in made["moved"]]}]}

    other = {"weights": ["v"] * 40}
    for times, by, state in ((2, 1.2, "failed"), (2, 1.0, "passed"), (2, 1.0001, "passed")):
        plain = moved(by=1.0, times=times)
        assert check_averages(plain, moved(by=by, times=times) | other).state == state
    # One of a hundred may be.
    for count, state in ((1, "passed"), (3, "failed")):
        plain, ours = record(), {**record(), **other}
        way = averaged()
        way["moved"] = [v * (1.2 if n < count else 1.0) for n, v in enumerate(way["moved"])]
        ours["averages"] = [way]
        assert check_averages(plain, ours).state == state


def test_a_copy_that_is_set_to_nearly_the_weights_is_no_snapshot_of_them() -> None:
    def snapshot(rest: float, at: int = 5) -> dict[str, Any]:
        made = averaged()
        made["moved"] = [1.0 if n == at else 0.0 for n in range(len(made["moved"]))]
        made["rest"] = [rest if n == at else 0.0 for n in range(len(made["moved"]))]
        return {**record(), "weights": ["v"] * 40, "averages": [made]}

    plain = {**snapshot(0.0, at=9), "weights": record()["weights"]}
    # The best so far may be those of another update, and must be these all the same.
    assert check_averages(plain, snapshot(0.0)).state == "partial"
    assert check_averages(plain, snapshot(0.1)).state == "failed"


def test_forwards_that_could_not_be_repeated_are_named() -> None:
    found = check_evaluation(
        record(), evaluated(OTHER_OUTPUT), repeated(1e-7, count=1), is_narrow=False
    )
    assert found.state == "partial"
    assert "1 of 2 sampled forwards could not be repeated" in found.evidence


def test_a_plan_that_claims_to_be_exact_evaluates_equal_weights_to_the_bit() -> None:
    other, sampled = evaluated(OTHER_OUTPUT), repeated(1e-7)
    same = {**other, "weights": record()["weights"]}
    for weights, claims_exact, state in (
        (same, True, "failed"),
        (same, False, "passed"),
        (other, True, "passed"),
    ):
        found = check_evaluation(
            record(), weights, sampled, is_narrow=False, claims_exact=claims_exact
        )
        assert found.state == state


def test_another_evaluation_is_not_exact() -> None:
    other = {**record(), "evaluated": OTHER_OUTPUT}
    found = judge(record(), other, claimed=Numerics.EXACT, plain_repeats=None)
    assert found.tier != "exact"


def test_a_verdict_says_what_it_covers_and_what_not() -> None:
    found = judge(record(), record(), claimed=Numerics.EXACT, plain_repeats=None)
    assert found.covers["steps"] == 40 and found.covers["evaluations"] == 2
    assert found.covers["schedule"] is False
    assert {limit.of for limit in found.limits} > {"batches", "initial weights"}
    assert all(limit.smallest == 0 for limit in found.limits)
    assert "everything after step 40" in found.not_checked
    assert set(found.to_json()) > {"covers", "limits", "not_checked", "checks"}


def test_a_copy_of_the_same_weights_has_the_same_bits() -> None:
    def run(digest: str) -> dict[str, Any]:
        return {**record(), "averages": [{**averaged(), "digests": ["a", digest]}]}

    assert check_averages(run("b"), run("b")).state == "passed"
    found = check_averages(run("b"), run("c"))
    assert found.state == "failed" and "other bits" in found.evidence
    # Of weights that were rounded in another way it has other bits, too.
    assert check_averages(run("b"), {**run("c"), "weights": ["x"]}).state == "passed"


@pytest.mark.parametrize("outcome", ["0123[not read: train.Boxes]", "unread: TypeError"])
def test_an_evaluation_that_was_not_read_is_not_called_equal(outcome: str) -> None:
    plain = {**record(), "evaluated": [[0, 10, "in", outcome], [0, 20, "in", outcome]]}
    found = check_evaluation(plain, plain, None, is_narrow=False)
    assert found.state == "partial" and outcome[-10:-1].strip("[]") in found.evidence
    verdict = judge(plain, plain, claimed=Numerics.EXACT, plain_repeats=None)
    assert verdict.tier == "exact"
    assert any("but not what these objects hold" in line for line in verdict.not_checked)
    assert check_evaluation(record(), record(), None, is_narrow=False).state == "passed"
    whole = judge(record(), record(), claimed=Numerics.EXACT, plain_repeats=None)
    assert not any(line.startswith("evaluation") for line in whole.not_checked)


def test_nothing_evaluated_is_said() -> None:
    plain = {**record(), "evaluated": [], "saved": 1}
    lines = not_checked([Check("averages", "partial", "none looked for")], covers(plain))
    assert "averages: none looked for" in lines
    assert any(line.startswith("evaluation") for line in lines)
    assert "files other than those of `torch.save`" in "\n".join(lines)
    assert not any("computes from" in line for line in lines)


def test_a_limit_is_stated_only_for_a_check_that_passed() -> None:
    row = {"gradient_error": 1e-7, "gradient_slope": 1.0, "plain_error": 1e-6}
    # Of two optimizers: six rows are three steps.
    sampled = SampledSteps([{**row, "step": number // 2} for number in range(6)])
    passed = limits([Check("gradient", "passed", "")], sampled, is_exact=False)
    stated = {limit.of: limit.smallest for limit in passed}
    assert stated["other gradients in some steps"] == pytest.approx(1 - 0.05 ** (1 / 3), abs=1e-3)
    # Two of the three steps must be among those that are seen, twice and for the median.
    two = stated["gradients that are 3% off, in some steps"]
    assert 3 * two**2 * (1 - two) + two**3 == pytest.approx(0.95, abs=1e-3)
    assert stated["gradients that are less off, in some steps"] == pytest.approx(two)
    assert set(stated) - {"gradient, in all steps"} == {each.of for each in passed[1:]}
    assert limits([Check("gradient", "failed", "")], sampled, is_exact=False) == ()
    (delivery,) = limits([Check("delivery", "passed", "")], sampled, is_exact=False)
    assert "backward" in delivery.of and delivery.smallest == DELIVERY_LIMIT


def snapshot(since: int, *moves: int, share: float = 1.0) -> dict[str, Any]:
    moved = [share if at in moves else 0.0 for at in range(100 - since)]
    zeros = [0.0] * len(moved)
    return {**averaged(), "since": since, "moved": moved, "doubt": zeros, "rest": zeros}


def test_what_is_kept_of_the_best_so_far_may_be_kept_at_other_updates() -> None:
    plain = {**record(), "averages": [snapshot(0, 20, 40), snapshot(60)]}
    for copies in (
        [snapshot(0, 20, 60), snapshot(60)],
        [snapshot(0, 20, 40)],
        [snapshot(0, 20, 40), snapshot(60), snapshot(80)],
    ):
        rounded = {**plain, "weights": ["rounded"], "averages": copies}
        found = check_averages(plain, rounded)
        assert found.state == "partial" and "1 copies" in found.evidence
        # Of the same weights the same are the best.
        assert check_averages(plain, {**plain, "averages": copies}).state == "failed"
    # An average moves often, or in part: as for SWA, once an epoch.
    for average, other in (
        (snapshot(0, *range(0, 100, 2)), snapshot(0, *range(0, 100, 4))),
        (snapshot(0, 20, 40, share=0.5), snapshot(0, 20, share=0.5)),
        (snapshot(0, *range(100)), snapshot(0)),
    ):
        plain = {**record(), "averages": [average]}
        rounded = {**plain, "weights": ["rounded"], "averages": [other]}
        assert check_averages(plain, rounded).state == "failed"
