"""What is added to the best plan in fresh processes must make it faster in two races."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hotlap.lab.arm import Arm
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.tuning import racing
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.confirming import confirm
from hotlap.tuning.live_races import LiveRaces
from hotlap.tuning.ranking import fastest_first
from tests.tuning import faked

RESIDENT = Plan({"resident": {}})
FUSED = Plan({"optimizer": {"implementation": "fused"}})
HEAP = Candidate("host_allocator", {}, Numerics.EXACT)
COLLECTOR = Candidate("garbage_collector", {}, Numerics.EXACT)
WITH_HEAP = RESIDENT.with_technique("host_allocator")
WITH_COLLECTOR = RESIDENT.with_technique("garbage_collector")
Speeds = Mapping[Plan, float]


def confirmed(
    monkeypatch: pytest.MonkeyPatch,
    *races: Speeds,
    finalists: Sequence[Plan] = (RESIDENT,),
    has_time_for_two: bool = True,
    left_s: float | None = None,
) -> tuple[Any, Race, list[set[Plan]]]:
    """Confirm `resident`, and what is faster with it, where races give such speeds.

    Returns:
        The tuner, the last race, and which plans were in each.
    """
    left, held = list(races), []

    def race(arms: Sequence[Arm], *, twins: Sequence[str], **options: Any) -> Race:
        del options
        plans = [arm.plan for arm in arms if arm.plan]
        held.append({*plans})
        speeds = left.pop(0)
        if not has_time_for_two:
            tuner.time_plan = replace(tuner.time_plan, second_until=0.0)
        if left_s is not None:
            tuner.budget.seconds = tuner.budget.spent + left_s
        made = faked.raced({plan: speeds[plan] for plan in plans})
        for arm in arms:
            if arm.plan:
                made.arms[str(arm.plan)] = made.arms.pop(faked.name_of(arm.plan))  # type: ignore
        kept = {n: a for n, a in made.arms.items() if a.plan or n in twins}
        return Race(kept, tuple(twins), made.rounds, made.steps_per_turn)

    monkeypatch.setattr(racing, "race", race)
    tuner = faked.tuner()
    tuner.live = {plan: Ratio(1.5, 1.49, 1.51, 12) for plan in finalists}
    final = confirm(tuner, faked.watched(), LiveRaces(tuner.live, [HEAP, COLLECTOR]))
    assert final is not None
    return tuner, final, held


def plans_in(final: Race) -> set[Plan]:
    return {arm.plan for arm in final.arms.values() if arm.plan}


def why(tuner: Any, name: str) -> str:
    (row,) = tuner.notes.rows([name])
    return row["why"]


def test_what_was_faster_once_is_raced_again_and_left_out_where_it_was_luck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lucky = {RESIDENT: 1.5, WITH_HEAP: 1.65, WITH_COLLECTOR: 1.5}
    tuner, final, held = confirmed(monkeypatch, lucky, {RESIDENT: 1.5, WITH_HEAP: 1.5})
    assert held == [{RESIDENT, WITH_HEAP, WITH_COLLECTOR}, {RESIDENT, WITH_HEAP}]
    assert plans_in(final) == {RESIDENT}
    assert [row.race for row in tuner.trials] == [2, 2, 2, 3, 3]
    assert why(tuner, "host_allocator").endswith("another race did not show it again")


def test_what_is_faster_in_two_races_is_in_the_plan_with_the_figures_of_the_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = {RESIDENT: 1.5, WITH_HEAP: 1.8, WITH_COLLECTOR: 1.7}
    second = {RESIDENT: 1.5, WITH_HEAP: 1.65, WITH_COLLECTOR: 1.5}
    tuner, final, _ = confirmed(monkeypatch, first, second)
    assert plans_in(final) == {RESIDENT, WITH_HEAP}
    assert fastest_first(final, tuner.floor)[0] == str(WITH_HEAP)
    assert final.ratio(str(WITH_HEAP)).median == pytest.approx(1.65, rel=0.01)
    assert "did not show" not in why(tuner, "host_allocator")
    assert "did not show" in why(tuner, "garbage_collector")


def test_what_is_no_faster_than_identical_runs_differ_needs_no_other_race(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    equal = {RESIDENT: 1.5, WITH_HEAP: 1.52, WITH_COLLECTOR: 1.49}
    _, final, held = confirmed(monkeypatch, equal)
    assert len(held) == 1 and plans_in(final) == {RESIDENT}


def test_the_other_finalists_stay_whatever_became_of_the_addition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them may be proven to a better tier."""
    first = {RESIDENT: 1.5, FUSED: 1.3, WITH_HEAP: 1.8, WITH_COLLECTOR: 1.5}
    both = (RESIDENT, FUSED)
    for again, expected in ((1.5, {*both}), (1.8, {*both, WITH_HEAP})):
        second = {RESIDENT: 1.5, FUSED: 1.3, WITH_HEAP: again}
        _, final, _ = confirmed(monkeypatch, first, second, finalists=both)
        assert plans_in(final) == expected


UNLUCKY = {RESIDENT: 1.0, WITH_HEAP: 1.15, WITH_COLLECTOR: 1.1}
"""The finalist that gained in one process did not in fresh ones."""


@pytest.mark.parametrize("of_finalist", [1.0, 1.05])
def test_the_addition_may_take_time_from_the_proof_but_not_all_of_it(
    of_finalist: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {**UNLUCKY, RESIDENT: of_finalist}
    short: Any = {"has_time_for_two": False}
    tuner, final, held = confirmed(monkeypatch, first, first, **short, left_s=50.0)
    assert {RESIDENT, WITH_HEAP} <= held[1]
    assert fastest_first(final, tuner.floor)[0] == str(WITH_HEAP)
    # A race of four takes 16 s, and the shortest proofs take 4 s.
    _, _, held = confirmed(monkeypatch, first, {RESIDENT: 1.0}, **short, left_s=18.0)
    assert WITH_HEAP not in (held[1] if held[1:] else {})


def test_without_time_for_the_addition_an_unlucky_finalist_is_raced_once_more_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short: Any = {"has_time_for_two": False, "left_s": 20.0}
    tuner, final, held = confirmed(monkeypatch, UNLUCKY, {RESIDENT: 1.5}, **short)
    assert held == [{RESIDENT, WITH_HEAP, WITH_COLLECTOR}, {RESIDENT}]
    assert fastest_first(final, tuner.floor) == [str(RESIDENT)]
    assert [row.race for row in tuner.trials] == [2, 2, 2, 3]
    assert "no time for another race" in why(tuner, "host_allocator")
    # Control: what was raced twice, with the addition, is not raced a third time.
    again = {RESIDENT: 1.0, WITH_HEAP: 1.0, WITH_COLLECTOR: 1.0}
    tuner, final, held = confirmed(monkeypatch, UNLUCKY, again)
    assert len(held) == 2 and fastest_first(final, tuner.floor) == []


def test_without_time_for_another_race_the_best_finalist_is_taken_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lucky = {RESIDENT: 1.5, WITH_HEAP: 1.8, WITH_COLLECTOR: 1.5}
    short: Any = {"has_time_for_two": False, "left_s": 20.0}
    tuner, final, held = confirmed(monkeypatch, lucky, **short)
    assert len(held) == 1 and plans_in(final) == {RESIDENT}
    assert fastest_first(final, tuner.floor) == [str(RESIDENT)]
    assert f"no time for another race: use {tuner.budget.option}" in why(tuner, "host_allocator")
