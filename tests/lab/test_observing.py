"""What is predicted of a whole run, from the part of it that was watched."""

from dataclasses import replace

import pytest

from hotlap.lab.whole_run import predict_whole_run
from hotlap.task import TaskFacts
from hotlap.trace.schema import PHASES, Anchor, Trace

EPOCH, EPOCHS = 100, 5
START_MS, FIRST_MS, LATER_MS, EVALUATION_MS = 20.0, 4.0, 2.0, 300.0


def trace(watched: int) -> Trace:
    """Watch so many steps of a run whose later epochs are twice as fast as its first."""
    rows = []
    for step in range(watched):
        ms = FIRST_MS if step < EPOCH else LATER_MS
        ms += START_MS if step == 0 else 0.0
        # What comes between epochs is in the record of the next epoch's first step.
        ms += EVALUATION_MS if step and step % EPOCH == 0 else 0.0
        rows.append([ms] + [0.0] * (len(PHASES) - 1))
    starts = list(range(0, watched, EPOCH))
    facts = TaskFacts(threads=1, steps_per_epoch=EPOCH, planned_steps=EPOCH * EPOCHS)
    return Trace(rows, starts, facts, Anchor("optimizer.step", "high", {}), setup_s=1.5)


def truth_s() -> float:
    first = START_MS + EPOCH * FIRST_MS + EVALUATION_MS
    later = (EPOCHS - 1) * (EPOCH * LATER_MS + EVALUATION_MS)
    return 1.5 + (first + later) / 1000


@pytest.mark.parametrize("watched", [EPOCH + 40, 2 * EPOCH + 1, 2 * EPOCH + 40])
def test_watched_for_an_epoch_and_some_steps_the_whole_run_is_known(watched: int) -> None:
    seen = predict_whole_run(trace(watched), EPOCH * EPOCHS)
    assert seen.seconds == pytest.approx(truth_s(), rel=0.05)


def test_what_a_race_says_of_later_steps_counts_more_than_a_short_look() -> None:
    slow = predict_whole_run(trace(EPOCH + 2), EPOCH * EPOCHS)
    raced = predict_whole_run(trace(EPOCH + 2), EPOCH * EPOCHS, LATER_MS)
    assert slow.seconds is not None
    assert slow.seconds > 1.2 * truth_s()
    assert raced.seconds == pytest.approx(truth_s(), rel=0.05)


def test_less_than_an_epoch_says_that_it_does_not_know_what_comes_after_one() -> None:
    seen = predict_whole_run(trace(EPOCH // 2), EPOCH * EPOCHS, LATER_MS)
    assert "was not reached" in seen.covers
    assert predict_whole_run(trace(EPOCH // 2), None).seconds is None


def test_two_loaders_that_begin_together_are_one_beginning() -> None:
    both = trace(2 * EPOCH + 40)
    both = replace(both, epoch_starts=sorted([*both.epoch_starts] * 2))
    assert predict_whole_run(both, EPOCH * EPOCHS).seconds == pytest.approx(truth_s(), rel=0.05)
