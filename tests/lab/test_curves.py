"""The losses of a proof, as a picture shows them: means of neighbours, with their noise."""

import json
import math

import pytest

from hotlap.lab.curves import MOST_POINTS, LossCurves, loss_curves

PLAIN = [float(step) for step in range(1, 257)]


def curves(*given: object) -> LossCurves:
    found = loss_curves(*given)  # pyright: ignore[reportArgumentType]
    assert found is not None
    return found


def test_points_are_means_of_neighbours_with_two_standard_errors() -> None:
    found = curves(PLAIN, [2 * loss for loss in PLAIN])
    assert found.each == 4 and len(found.steps) == MOST_POINTS
    assert found.steps[:2] == (4, 8) and found.steps[-1] == 256
    assert found.plain[0] == 2.5 and found.plan[0] == 5.0
    assert found.band == "batches"
    # Of 1, 2, 3, 4 the standard deviation is 1.29.
    assert found.high[0] == pytest.approx(2.5 + 1.2909944)
    assert found.low[0] == pytest.approx(2.5 - 1.2909944)


def test_steps_are_counted_where_each_has_several_losses() -> None:
    found = curves(PLAIN, PLAIN, (), 128)
    assert found.steps[:2] == (2, 4) and found.steps[-1] == 128
    # A run that was stopped in the middle of a step.
    assert curves(PLAIN[:21], PLAIN[:21], (), 10).steps[-1] == 10


def test_with_several_seeds_the_band_is_their_span() -> None:
    seeds = [PLAIN[:128], [loss + 3 for loss in PLAIN[:128]], [loss - 1 for loss in PLAIN[:128]]]
    found = curves(PLAIN, PLAIN, seeds)
    assert found.band == "seeds" and found.steps[-1] == 128
    assert found.plain[0] == 1.5 and (found.low[0], found.high[0]) == (0.5, 4.5)


def test_what_is_not_finite_is_a_gap_and_not_a_number() -> None:
    broken = [*PLAIN[:4], math.nan, *PLAIN[5:]]
    found = curves(broken, [math.inf] * 256)
    assert found.plain[:3] == (2.5, None, 10.5) and set(found.plan) == {None}
    assert found.low[1] is None and found.high[1] is None
    json.dumps(found.to_json(), allow_nan=False)


def test_a_short_run_has_a_point_for_each_step_and_no_band() -> None:
    found = curves(PLAIN[:5], PLAIN[:3])
    assert (found.steps, found.each, found.band, found.low) == ((1, 2, 3), 1, "", ())
    assert loss_curves(PLAIN[:1], PLAIN) is None and loss_curves([], PLAIN) is None


def test_what_is_kept_is_read_back() -> None:
    found = curves(PLAIN, PLAIN)
    assert LossCurves.from_json(json.loads(json.dumps(found.to_json()))) == found
