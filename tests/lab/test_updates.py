"""What every step shows: who took part, what was drawn, what the optimizer made of it."""

from collections.abc import Callable
from typing import Any

import pytest

from hotlap.lab.updates import (
    check_participation,
    check_random,
    check_updates,
    estimate_updates,
    unrepeated_generators,
)
from tests.lab.records import record


def changed(**changes: Any) -> dict[str, Any]:
    """Return a record in which update 12 differs in these."""
    other = record()
    other["followed"]["updates"][12] |= changes
    return other


def test_equal_records_pass() -> None:
    for check in (check_participation, check_random, check_updates):
        assert check(record(), record()).state == "passed"
        assert check({**record(), "followed": None}, record()).state == "not_made"


@pytest.mark.parametrize("letters", ["gn", "zz", "g"])
def test_who_takes_no_part_is_a_change(letters: str) -> None:
    found = check_participation(record(), changed(gradients=letters))
    assert found.state == "failed" and "1" in found.evidence


def drawing(
    count: Callable[[int], int], *, optimizers: int = 1, name: str = "another"
) -> dict[str, Any]:
    """Return a record in which other numbers are drawn, so many before each update."""
    other, place = record(), 0
    for number, row in enumerate(other["followed"]["updates"]):
        place += count(number)
        row |= {"random": [f"{name} {number}", "python", "numpy"], "place": [place % 624]}
        row["optimizer"] = number % optimizers
    return other


EVEN: dict[str, Callable[[int], int]] = {
    "as many": lambda number: 17,
    "others for all": lambda number: 2,
    "others while code is compiled": lambda number: 2 if number > 3 else 30,
}


@pytest.mark.parametrize("count", EVEN.values(), ids=EVEN)
def test_another_stream_that_is_drawn_from_evenly_may_be_one(count: Callable[[int], int]) -> None:
    assert check_random(record(), drawing(count)).state == "partial"


def test_dropout_that_is_off_at_times_is_no_other_stream() -> None:
    off = drawing(lambda number: 0 if number % 8 == 0 else 17)
    found = check_random(record(), off)
    assert found.state == "failed" and "4 updates come after another count" in found.evidence
    # What the plain run draws unevenly itself may be as uneven under a plan.
    uneven = drawing(lambda number: 20 + number % 10, name="torch")
    assert check_random(uneven, off).state == "partial"
    # Nothing is known where the states of a generator are laid out otherwise.
    for row in off["followed"]["updates"]:
        row["place"] = []
    assert check_random(record(), off).state == "partial"


def test_each_optimizer_may_draw_another_count() -> None:
    def alternately(number: int) -> int:
        return 40 if number % 2 else 17

    plain = drawing(lambda number: 17, optimizers=2, name="torch")
    assert check_random(plain, drawing(alternately, optimizers=2)).state == "partial"


def test_a_few_zeros_may_be_rounding_and_many_are_not() -> None:
    assert check_participation(record(), changed(gradients="gz")).state == "passed"
    other = record()
    for row in other["followed"]["updates"][:5]:
        row["gradients"] = "gz"
    assert check_participation(record(), other).state == "failed"
    # Gradients where the plain run has none are no better.
    assert check_participation(other, record()).state == "failed"


def test_a_generator_that_nobody_seeds_or_draws_from_says_nothing() -> None:
    runs = [record(), record()]
    for number, each in enumerate(runs):
        states = [f"python {number}", f"numpy {number}"]
        each["followed"]["random_before"] = ["torch at first", *states]
        for row in each["followed"]["updates"]:
            row["random"] = [row["random"][0], *states]
    assert unrepeated_generators(*runs) == []
    found = check_random(*runs)
    assert found.state == "passed" and "of torch are" in found.evidence
    # One number that is drawn from it, in one of the runs, and it counts.
    runs[1]["followed"]["updates"][-1]["random"][2] = "numpy once more"
    assert unrepeated_generators(*runs) == ["NumPy"]
    found = check_random(*runs)
    assert found.state == "partial" and "NumPy's from update 1 on" in found.evidence
    # So it does where it was seeded, or drawn from before the first update.
    for before in (["torch", "python 0", "another"], None):
        seeded = record()
        for row in seeded["followed"]["updates"]:
            row["random"] = [row["random"][0], "python 0", "numpy 1"]
        seeded["followed"]["random_before"] = before
        assert "NumPy" in unrepeated_generators(runs[0], seeded)


def test_random_numbers_that_come_again_are_a_change_and_others_are_a_stream() -> None:
    again = changed(random=["torch 11", "python", "numpy"])
    assert check_random(record(), again).state == "failed"
    others = changed(random=["torch x", "python", "numpy"])
    found = check_random(record(), others)
    assert found.state == "partial" and "torch's from update 13 on" in found.evidence
    # What two plain runs do not repeat says nothing of the plan.
    plain = {**record(), "not_repeated": unrepeated_generators(record(), others)}
    assert plain["not_repeated"] == ["torch"]
    assert check_random(plain, others).state == "passed"
    assert check_random({**plain, "not_repeated": ["torch", "Python", "NumPy"]}, others).state == (
        "not_made"
    )


@pytest.mark.parametrize(
    ("sums", "words"),
    [
        ([0.0, 1e-6, 0.0, 1.0, 0.0, 1e-12, 1e-16], "update 13 is different"),
        ([1e-6 * 1e-3, 1e-6, 0.0, 1.0, 0.0, 1e-17, 1e-16], "the step size is different"),
        ([0.0, 1e-6, 2e-5, 1.0, 0.0, 1e-17, 1e-16], "the weight decay is different"),
    ],
)
def test_what_an_update_does_otherwise_is_named(sums: list[float], words: str) -> None:
    found = check_updates(record(), changed(sums=[sums]))
    assert found.state == "failed" and words in found.evidence


def test_a_state_that_the_update_should_not_leave_is_named() -> None:
    states = {"step": [0.0, 1.0, 2.0**-23], "exp_avg": [4e-3, 1.0, 2.0**-23]}
    found = check_updates(record(), changed(states=states))
    assert found.state == "failed" and "`exp_avg` after update 13" in found.evidence
    # A missing entry is not a number.
    states["exp_avg"][0] = float("nan")
    assert check_updates(record(), changed(states=states)).state == "failed"


def test_what_the_plain_run_cannot_show_is_left_to_the_sampled_steps() -> None:
    none = changed(sums=None, states=None)
    none["followed"]["problem"] = "its state is no vector"
    assert estimate_updates(none["followed"]) is None
    found = check_updates(none, none)
    assert found.state == "partial" and "its state is no vector" in found.evidence
    # But where the plain run can, the plan must.
    assert check_updates(record(), none).state == "not_made"


def test_an_update_that_is_not_finite_hides_no_other() -> None:
    nan = float("nan")
    plain = changed(sums=[[nan] * 7])
    assert check_updates(plain, plain).state == "passed"
    assert check_updates(record(), plain).state == "failed"
    # A learning rate that is larger at all the others shows all the same.
    other = changed(sums=[[nan] * 7])
    for number, row in enumerate(other["followed"]["updates"]):
        if number != 12:
            row["sums"] = [[5e-5 * 1e-6, 1e-6, 0.0, 1.0, 0.0, 1e-17, 1e-16]]
    assert "the step size is different" in check_updates(plain, other).evidence


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_a_run_none_of_whose_updates_is_finite_is_judged(odd: float) -> None:
    none = record()
    for row in none["followed"]["updates"]:
        row["sums"] = [[odd] * 7]
    assert check_updates(none, none).state == "partial"
    assert check_updates(none, record()).state == "partial"
    found = check_updates(record(), none)
    assert found.state == "failed" and "update 1 is not finite" in found.evidence


def test_an_update_is_named_by_its_number_also_behind_one_that_is_not_finite() -> None:
    plain, other = changed(sums=[[float("nan")] * 7]), changed(sums=[[float("nan")] * 7])
    other["followed"]["updates"][20]["sums"] = [[0.0, 1e-6, 0.0, 1.0, 0.0, 1e-12, 1e-16]]
    assert "update 21 is different" in check_updates(plain, other).evidence


def test_gradients_that_the_optimizer_makes_itself_say_nothing_of_who_takes_part() -> None:
    none = record()
    for row in none["followed"]["updates"]:
        row["gradients"] = "nn"
    assert check_participation(none, none).state == "partial"
