"""What is predicted of a whole run, from the part of it that was watched."""

from dataclasses import replace

import pytest

from hotlap.lab.whole_run import (
    WholeRun,
    predict_from_plain,
    predict_whole_run,
    seconds_between_epochs,
)
from hotlap.task import LoaderFacts, TaskFacts
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


def parts_of_truth() -> dict[str, float]:
    steps_ms = EPOCH * FIRST_MS + (EPOCHS - 1) * EPOCH * LATER_MS
    # Among the first steps of these runs the median one is fast.
    start_s = 1.5 + 0.2 + START_MS / 1e3
    return {
        "start_s": start_s,
        "steps_s": steps_ms / 1e3,
        "between_s": EPOCHS * EVALUATION_MS / 1e3,
    }


def truth_s() -> float:
    first = START_MS + EPOCH * FIRST_MS + EVALUATION_MS
    later = (EPOCHS - 1) * (EPOCH * LATER_MS + EVALUATION_MS)
    return 1.5 + (first + later) / 1000


@pytest.mark.parametrize("watched", [EPOCH + 40, 2 * EPOCH + 1, 2 * EPOCH + 40])
def test_watched_for_an_epoch_and_some_steps_the_whole_run_is_known(watched: int) -> None:
    seen = predict_whole_run(trace(watched), EPOCH * EPOCHS)
    assert seen.seconds == pytest.approx(truth_s(), rel=0.05)
    parts = seen.parts()
    assert parts is not None and sum(parts.values()) == pytest.approx(seen.seconds)
    assert parts == pytest.approx(parts_of_truth(), rel=0.05)


def test_a_run_that_was_watched_to_its_end_is_made_of_the_same_parts() -> None:
    ended = replace(trace(EPOCH * EPOCHS), ended="script")
    found = predict_whole_run(ended, EPOCH * EPOCHS)
    assert found.parts() == pytest.approx(parts_of_truth(), rel=0.05)
    # With the evaluation after the last epoch, which is in no record of a step.
    assert found.seconds == pytest.approx(truth_s() + 0.2, rel=0.01)
    # One that stopped early took fewer steps than were planned.
    assert predict_whole_run(ended, 9 * EPOCH * EPOCHS) == found
    assert found.steps == EPOCH * EPOCHS
    # Before an epoch ends nothing is known of what comes after it.
    short = predict_whole_run(trace(EPOCH // 2), EPOCH * EPOCHS).parts()
    assert short is not None and short["between_s"] == 0
    assert predict_whole_run(trace(EPOCH // 2), None).parts() is None


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


def test_what_comes_between_epochs_counts_in_both_runs_or_in_neither() -> None:
    """The plain run is watched for a whole epoch, the plan's for half of one, or the other way."""
    long, short = trace(2 * EPOCH + 40), trace(EPOCH // 2)
    steps = EPOCH * EPOCHS
    alone = predict_whole_run(short, steps, LATER_MS).seconds
    assert alone is not None and alone < truth_s() - (EPOCHS - 1) * EVALUATION_MS / 1e3
    beside = predict_whole_run(short, steps, LATER_MS, beside=long)
    assert beside.seconds == pytest.approx(truth_s(), rel=0.05)
    assert beside.covers.endswith("that of the run beside it")
    # A run that shows it itself needs no other one, and two that do not are told apart by steps.
    assert predict_whole_run(long, steps, LATER_MS, beside=short) == predict_whole_run(
        long, steps, LATER_MS
    )
    assert predict_whole_run(short, steps, LATER_MS, beside=short).seconds == alone


def loader(dataset: str, training: bool, num_workers: int = 0) -> LoaderFacts:
    where = {"where": "train.py:1", "getitem": "", "batches": 50}
    return LoaderFacts(
        dataset,
        3200,
        64,
        num_workers,
        True,
        True,
        training=training,
        **where,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize(
    ("read_ms", "evaluated", "later_s"),
    [
        # 50 batches that are not read again; their forwards are as long as before.
        (2.0, loader("Images", False), 0.2),
        (9.0, loader("Images", False), 0.05),
        # Read in another way, or by workers beside the evaluation.
        (2.0, loader("Texts", False), 0.3),
        (2.0, loader("Images", False, num_workers=1), 0.3),
    ],
)
def test_what_was_evaluated_once_is_in_memory_too(
    read_ms: float, evaluated: LoaderFacts, later_s: float
) -> None:
    data, forward, other = (PHASES.index(name) for name in ("data", "forward", "other"))
    rows = []
    for step in range(EPOCH + 40):
        row = [0.0] * len(PHASES)
        row[data], row[forward] = read_ms, 1.0
        row[other] = EVALUATION_MS * (step == EPOCH)
        rows.append(row)
    facts = replace(trace(1).facts, loaders=(loader("Images", True), evaluated))
    seen = replace(trace(EPOCH + 40), steps=rows, facts=facts)
    steps = EPOCH * EPOCHS
    assert seconds_between_epochs(seen, steps) == pytest.approx(EPOCHS * 0.3)
    served_s = 0.3 + (EPOCHS - 1) * later_s
    assert seconds_between_epochs(seen, steps, is_served=True) == pytest.approx(served_s)
    # The plan's run was watched for less than an epoch.
    short = replace(seen, steps=rows[:9], epoch_starts=[0])
    one, other_one = (
        predict_whole_run(short, steps, beside=seen, is_served=served).seconds
        for served in (False, True)
    )
    assert one is not None and other_one is not None
    assert one - other_one == pytest.approx((EPOCHS - 1) * (0.3 - later_s))
    # It was watched until the first evaluation, which reads; what it reads later is served.
    one, other_one = (
        predict_whole_run(seen, steps, beside=seen, is_served=served) for served in (False, True)
    )
    assert one.between_s - other_one.between_s == pytest.approx((EPOCHS - 1) * (0.3 - later_s))
    assert one.steps_s == pytest.approx(other_one.steps_s)
    # Where a later evaluation was seen, it takes what it takes.
    both = replace(seen, steps=rows + rows[1:], epoch_starts=[0, EPOCH, 2 * EPOCH])
    one, other_one = (
        predict_whole_run(both, steps, beside=seen, is_served=served) for served in (False, True)
    )
    assert one == other_one


def test_of_two_measurements_the_smaller_one_counts_without_a_whole_epoch_too() -> None:
    short, steps = trace(EPOCH // 2), EPOCH * EPOCHS
    slow = predict_whole_run(short, steps, 2 * FIRST_MS).seconds
    assert slow == predict_whole_run(short, steps, FIRST_MS).seconds


def without_epochs(step_ms: float, evaluated: bool, start_ms: float = START_MS) -> Trace:
    rows = [[step_ms] + [0.0] * (len(PHASES) - 1) for _ in range(EPOCH)]
    rows[0][0] += start_ms
    rows[50][0] += evaluated * EVALUATION_MS
    facts = TaskFacts(threads=1, planned_steps=EPOCH * EPOCHS)
    return Trace(rows, (), facts, Anchor("optimizer.step", "high", {}), setup_s=1.5)


def test_without_epochs_an_evaluation_in_one_of_two_watched_stretches_is_no_saving() -> None:
    steps = EPOCH * EPOCHS
    found = []
    for in_seen, in_own in ((True, False), (False, True), (False, False)):
        seen, own = without_epochs(4.0, in_seen), without_epochs(3.0, in_own)
        plain = predict_whole_run(seen, steps)
        under = predict_from_plain(plain, seen, own, saved_s=steps * 1e-3)
        assert plain.seconds is not None and under.seconds is not None
        found.append(plain.seconds - under.seconds)
    assert found == pytest.approx([steps * 1e-3] * 3)
    # What it takes longer to start, to compile for example, is no saving either.
    seen, own = without_epochs(4.0, False), without_epochs(3.0, False, start_ms=5020.0)
    plain = predict_whole_run(seen, steps)
    under = predict_from_plain(plain, seen, own, saved_s=steps * 1e-3)
    assert plain.seconds is not None and under.seconds is not None
    assert under.start_s - plain.start_s == pytest.approx(5.0)
    assert plain.steps_s - under.steps_s == pytest.approx(steps * 1e-3)
    # One that starts faster than the plain run starts in some time.
    fast = predict_from_plain(predict_whole_run(own, steps), own, seen, saved_s=0.0)
    assert fast.start_s == pytest.approx(1.5 + 0.2 + START_MS / 1e3)
    assert under.seconds - plain.seconds == pytest.approx(5.0 - steps * 1e-3)
    unknown = WholeRun(None, "no end was found")
    assert predict_from_plain(unknown, seen, own, saved_s=1.0) == unknown
