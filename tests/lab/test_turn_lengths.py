"""Turns count seconds: what is short, slow, or both."""

from dataclasses import replace
from typing import Any

import pytest

from hotlap.errors import TrialError
from hotlap.lab.turn_lengths import (
    LEAST_STEPS,
    WARM_UP,
    check_length,
    is_whole,
    short_epoch,
    skipped_steps,
    turn_length,
    usable_steps,
    warm_up_lengths,
)
from hotlap.task.facts import LoaderFacts, TaskFacts
from hotlap.trace.schema import Anchor, Trace

LOADER = LoaderFacts("d", 320, 10, 2, True, True, True, "a.py:3", "a.py:9", 32)


def test_a_long_run_of_short_steps_gets_turns_of_the_seconds_that_were_asked_for() -> None:
    warm_up = warm_up_lengths(10_000, 5.0)
    assert warm_up == WARM_UP
    assert turn_length(0.4, 10, 10_000, 5.0, warm_up) == 80


def test_steps_of_a_second_are_taken_one_at_a_time() -> None:
    warm_up = warm_up_lengths(90, 1000.0)
    assert warm_up == (1, 1)
    assert turn_length(0.4, 10, 90, 1000.0, warm_up) == 1
    assert skipped_steps(1) == 0


@pytest.mark.parametrize("step_ms", [0.2, 5.0, 80.0, 3000.0])
def test_a_turn_fits_into_a_process_behind_its_warm_up(step_ms: float) -> None:
    for steps in range(LEAST_STEPS, 200):
        warm_up = warm_up_lengths(steps, step_ms)
        turn = turn_length(0.4, 10, steps, step_ms, warm_up)
        assert turn >= 1 and all(length >= 1 for length in warm_up), steps
        assert sum(warm_up) + turn <= usable_steps(steps), steps
        assert 0 <= skipped_steps(turn) < turn, steps


@pytest.mark.parametrize("age", [1, 17, 20, 400])
def test_a_turn_fits_behind_the_steps_of_what_acts_late(age: int) -> None:
    ages = []
    for steps in range(LEAST_STEPS, 2 * age + 60):
        warm_up = warm_up_lengths(steps, 5.0, age)
        turn = turn_length(0.4, 10, steps, 5.0, warm_up)
        # Else the script would be started again for ever.
        assert sum(warm_up) + turn <= usable_steps(steps), steps
        ages.append(warm_up == (age, WARM_UP[1]))
    # Whoever has enough steps takes them.
    assert ages == sorted(ages) and ages[-1] and not ages[0]
    assert warm_up_lengths(None, 5.0, age) == (age, WARM_UP[1])


def test_a_short_run_is_started_again_rather_than_timed_for_a_moment() -> None:
    warm_up = warm_up_lengths(60, 5.0)
    turn = turn_length(0.4, 10, 60, 5.0, warm_up)
    assert turn * 5.0 >= 100
    assert 10 * turn > usable_steps(60)


@pytest.mark.parametrize("epoch", [1, 3, 4, 32, 100])
def test_what_counts_of_a_turn_can_be_whole_epochs(epoch: int) -> None:
    for step_ms in (0.5, 5.0, 300.0):
        turn = turn_length(0.4, 10, None, step_ms, WARM_UP, epoch)
        assert turn >= turn_length(0.4, 10, None, step_ms, WARM_UP)
        assert (turn - skipped_steps(turn)) % epoch == 0 and is_whole(turn, epoch)
    # Where the script is too short for that, turns are as short as they have to be.
    turn = turn_length(0.4, 10, 60, 5.0, WARM_UP, 47)
    assert sum(WARM_UP) + turn <= usable_steps(60)
    assert not is_whole(turn, 47) and not is_whole(turn, None)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, 32),
        ({"steps_per_epoch": None}, None),
        ({"steps_per_epoch": 0}, None),
        ({"steps_per_epoch": 100}, None),
        ({"loaders": (replace(LOADER, num_workers=0),)}, None),
        ({"loaders": (replace(LOADER, training=False),)}, None),
    ],
)
def test_turns_take_whole_epochs_where_workers_start_in_short_ones(
    facts: dict[str, Any], expected: int | None
) -> None:
    known = TaskFacts(**{"loaders": (LOADER,), "steps_per_epoch": 32, **facts})
    trace = Trace([(12.0, 1.0, 1.0, 1.0, 1.0)] * 20, (0,), known, Anchor("step", "high", {}), 1.0)
    assert short_epoch(trace) == expected


def test_a_run_of_three_steps_cannot_be_compared() -> None:
    with pytest.raises(TrialError, match="takes 3 steps, too few"):
        check_length("a.py", 3)
    check_length("a.py", LEAST_STEPS)
    check_length("a.py", None)
