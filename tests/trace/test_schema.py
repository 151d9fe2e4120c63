"""A trace reads back as it was written, and averages over whole epochs where it has any."""

import json

import pytest

from hotlap.task import TaskFacts
from hotlap.trace.schema import Anchor, HotLine, Trace


def trace(rows: list[float], starts: list[int]) -> Trace:
    steps = tuple((ms, 0.0, 0.0, 0.0, 1.0) for ms in rows)
    anchor = Anchor("optimizer.step", "high", {"backwards": 3})
    lines = (HotLine("data", "a.py:1", 0.5),)
    return Trace(steps, tuple(starts), TaskFacts(layers={"Linear": 2}), anchor, 1.5, lines, (0.1,))


def test_it_reads_back_as_it_was_written() -> None:
    written = trace([1.0, 2.0], [0])
    assert Trace.from_json(json.loads(json.dumps(written.to_json()))) == written


def test_the_first_step_is_left_out_where_no_epoch_is_whole() -> None:
    given = trace([100.0, 1.0, 3.0], [0])
    assert not given.covers_whole_periods
    assert given.phase_means() == {
        "data": 2.0,
        "forward": 0.0,
        "backward": 0.0,
        "optimizer": 0.0,
        "other": 1.0,
    }
    assert given.step_ms()["n"] == 2
    assert trace([5.0], [0]).step_ms()["mean"] == 6.0


def test_whole_epochs_are_averaged_with_what_lies_between_them() -> None:
    # Epochs of three steps; the evaluation between two is in the first record of the later one.
    given = trace([50.0, 1.0, 1.0, 10.0, 1.0, 1.0, 10.0, 7.0], [0, 3, 6])
    assert given.covers_whole_periods
    assert list(given.window()) == [1, 2, 3, 4, 5, 6]
    assert given.phase_means()["data"] == pytest.approx(4.0)


def test_steady_phases_are_those_of_the_last_whole_epoch() -> None:
    given = trace([9.0] * 11 + [2.0] * 15, [0, 10, 20])
    assert given.has_later_epoch and given.steady_phases()["data"] == 2.0
    # Of one step each: enough of them, and not the first.
    given = trace([9.0, 9.0, *[3.0] * 9, *[1.0, 3.0] * 15], [*range(41)])
    assert given.steady_phases()["data"] == 2.0
    given = trace([9.0, 9.0, *[1.0, 3.0] * 3], [*range(8)])
    assert given.steady_phases()["data"] == 2.0
    # Of the first epoch alone it is known what it takes to read.
    given = trace([9.0] * 11 + [2.0] * 15, [0, 10])
    assert not given.has_later_epoch and given.steady_phases() == given.phase_means()


def test_a_timeline_has_few_columns_and_leaves_out_the_first_step() -> None:
    given = trace([100.0, *map(float, range(1, 9))], [0, 4])
    found = given.timeline(4)
    assert found["each"] == 2 and found["steps"] == [2, 4, 6, 8] and found["epochs"] == [1, 5]
    assert found["phases"]["data"] == [1.5, 3.5, 5.5, 7.5]
    assert given.timeline()["phases"]["data"] == [float(k) for k in range(1, 9)]
    assert trace([5.0], [0]).timeline()["steps"] == [1]
