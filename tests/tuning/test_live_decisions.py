"""Which combinations are raced next, and what may be left out of the fastest."""

from hotlap.lab.decisions import Combination, Decision, State
from hotlap.lab.statistics import Ratio
from hotlap.tuning.live_decisions import all_that_look_faster, as_fast_without


def decided(
    on: Combination, speed: float, state: State = "faster", odds: float = 1000.0
) -> Decision:
    return Decision(on, state, Ratio(speed, speed, speed, 12), odds=odds)


def excludes(one: int, other: int) -> bool:
    return {one, other} == {1, 2}


def test_all_that_look_faster_are_tried_together() -> None:
    alone = [
        decided((0,), 1.5),
        decided((1,), 1.05, "undecided", odds=7.0),
        decided((2,), 1.10, "undecided", odds=7.0),
        decided((3,), 1.20, "undecided", odds=7.0),
        # These look so too little, or only by chance.
        decided((4,), 1.01, "undecided", odds=7.0),
        decided((5,), 1.30, "undecided", odds=2.0),
        Decision((6,), "failed"),
    ]
    assert all_that_look_faster((0,), alone, excludes) == (0, 2, 3)
    # One more is tried beside all others, and nothing where nothing gains.
    assert all_that_look_faster((0,), alone[:2], excludes) == ()
    assert all_that_look_faster((), alone, excludes) == ()


def test_what_never_gained_and_costs_nothing_to_leave_out_is_left_out() -> None:
    found = [
        decided((0, 1), 0.995, "undecided"),
        decided((0, 2), 0.90, "not_faster"),
        decided((1, 2), 0.998, "undecided"),
        decided((0, 1, 2, 3), 1.0, "undecided"),
        decided((), 0.5, "not_faster"),
    ]
    assert as_fast_without({1, 2}, found, (0, 1, 2)) == (0, 1)
    # Control: what was decided to gain stays.
    assert as_fast_without({1}, found, (0, 1, 2)) == ()
