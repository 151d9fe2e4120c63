"""Ratios, intervals and the noise floor."""

import random
from statistics import median

import pytest

from hotlap.lab.statistics import (
    SAFETY,
    SMALLEST_FLOOR,
    Ratio,
    interval,
    is_gain,
    noise_floor,
    paired_ratio,
)


def test_a_machine_that_drifts_does_not_move_the_paired_ratio() -> None:
    drift = [1.0, 1.3, 1.9, 1.1, 0.8, 2.5, 1.0, 1.2]
    ratio = paired_ratio([4 * d for d in drift], [2 * d for d in drift])
    assert ratio.median == ratio.low == ratio.high == pytest.approx(2.0)


def test_the_interval_holds_the_median_and_widens_with_noise() -> None:
    generator = random.Random(1)
    calm = [1 + generator.gauss(0, 0.01) for _ in range(20)]
    loud = [1 + generator.gauss(0, 0.2) for _ in range(20)]
    for values in (calm, loud):
        low, high = interval(values)
        assert min(values) <= low <= sorted(values)[10] <= high <= max(values)
    assert interval(loud)[1] - interval(loud)[0] > interval(calm)[1] - interval(calm)[0]


def test_no_gain_below_the_floor() -> None:
    assert not is_gain(Ratio(1.2, 1.04, 1.4, 10), floor=0.05)
    assert is_gain(Ratio(1.2, 1.06, 1.4, 10), floor=0.05)


def test_the_floor_is_wider_than_the_largest_difference_between_twins() -> None:
    floor = noise_floor([[1.0, 1.0], [1.1, 1.1], [1.0, 1.0]])
    assert floor == pytest.approx(0.1 * SAFETY)
    assert noise_floor([[1.0, 1.0], [1.0, 1.0]]) == SMALLEST_FLOOR


def test_duels_of_equals_claim_no_gain_and_real_gains_are_claimed() -> None:
    """Each process has a level of its own, and turns scatter; a claim needs two races."""
    generator = random.Random(7)

    def run(speed: float = 1.0) -> list[float]:
        level = generator.gauss(1, 0.03) / speed
        return [level * (1 + generator.gauss(0, 0.03)) for _ in range(10)]

    def claimed(speed: float) -> bool:
        races = []
        for _ in range(2):
            twins = [run() for _ in range(3)]
            base = [median(row) for row in zip(*twins, strict=True)]
            races.append((paired_ratio(base, run(speed)), noise_floor(twins)))
        floor = max(floor for _, floor in races)
        return all(is_gain(ratio, floor) for ratio, _ in races)

    assert sum(claimed(1.0) for _ in range(200)) == 0
    assert sum(claimed(1.6) for _ in range(50)) == 50


@pytest.mark.parametrize(("left", "right"), [([], []), ([1.0], [1.0, 2.0])])
def test_what_cannot_be_paired_is_refused(left: list[float], right: list[float]) -> None:
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_ratio(left, right)
