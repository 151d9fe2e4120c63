"""Ratios, intervals and the noise floor."""

import random
from statistics import median

import pytest

from hotlap.lab.statistics import (
    SAFETY,
    SMALLEST_FLOOR,
    Ratio,
    holds_by_means,
    interval,
    is_gain,
    median_pair,
    noise_floor,
    paired_ratio,
    ratio_of_means,
)


def test_the_pair_that_is_shown_has_the_ratio_that_is_told() -> None:
    # The first round was slow for both, the last for the second alone.
    base, other = [8.0, 4.0, 4.2, 4.1, 4.4], [4.0, 2.2, 2.0, 2.1, 4.0]
    shown = median_pair(base, other)
    assert shown == (4.1, 2.1)
    assert shown[0] / shown[1] == paired_ratio(base, other).median
    # Of an even number the median lies between two.
    shown = median_pair(base[:2], other[:2])
    assert shown[0] == 6.0
    assert shown[0] / shown[1] == pytest.approx(paired_ratio(base[:2], other[:2]).median)


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


PAIRS = [
    *(1.009, 1.022, 0.907, 0.917, 0.974, 0.971, 1.19, 1.192, 0.996, 1.003),
    *(1.113, 1.112, 1.059, 1.049, 0.963, 0.959, 0.867, 0.852, 0.837, 0.835),
]
"""Ten pairs of neighbours that are alike, as on a shared host."""


def test_the_interval_is_that_of_95_percent_over_blocks_of_two_neighbours() -> None:
    # Single rounds would give 0.938 to 1.035, blocks of three 0.912 to 1.059; 90 % 0.938 to 1.049,
    # 99 % 0.887 to 1.086.
    assert interval(PAIRS) == pytest.approx((0.912, 1.054), abs=1e-6)


def test_too_few_rounds_to_draw_blocks_from_give_all_that_was_seen() -> None:
    assert interval([1.0, 3.0, 2.0]) == (1.0, 3.0)


def test_no_gain_below_the_floor() -> None:
    assert not is_gain(Ratio(1.2, 1.04, 1.4, 10), floor=0.05)
    assert is_gain(Ratio(1.2, 1.06, 1.4, 10), floor=0.05)


def test_the_floor_is_wider_than_the_largest_difference_between_twins() -> None:
    floor = noise_floor([[1.0, 1.0], [1.1, 1.1], [1.0, 1.0]])
    assert floor == pytest.approx(0.1 * SAFETY)
    assert noise_floor([[1.0, 1.0], [1.0, 1.0]]) == SMALLEST_FLOOR == 0.02
    assert noise_floor([[1.0, 1.0], [1.01, 1.01]]) == SMALLEST_FLOOR
    assert noise_floor([[1.0, 1.0], [1.016, 1.016]]) > SMALLEST_FLOOR


@pytest.mark.parametrize("apart", [(1.0, 1.2, 1.1), (1.0, 1.1, 1.2), (1.1, 1.0, 1.2)])
def test_any_two_of_the_twins_may_be_those_that_differ_most(apart: tuple[float, ...]) -> None:
    largest = max(abs(a / b - 1) for k, a in enumerate(apart) for b in apart[k + 1 :])
    assert noise_floor([[ms, ms] for ms in apart]) == pytest.approx(1.5 * largest)


def test_a_noise_floor_needs_two_twins() -> None:
    with pytest.raises(ValueError, match="two identical runs"):
        noise_floor([[1.0, 1.0]])


def test_a_gain_holds_by_the_means_as_far_as_twins_agree_in_theirs() -> None:
    calm = [[1.0] * 4, [1.0] * 4]
    assert holds_by_means(calm, [0.9] * 4)
    # Faster in three of four turns, and as fast as plain all together.
    assert not holds_by_means(calm, [0.9, 0.9, 0.9, 1.3])
    assert not holds_by_means(calm, [1.0] * 4)
    loud = [[1.0] * 4, [1.04] * 4]
    assert holds_by_means(loud, [1.0] * 4)
    # Noise excuses little: who differs by half may hide anything.
    assert not holds_by_means([[1.0] * 4, [1.5] * 4], [1.3] * 4)
    assert ratio_of_means([[1.0, 3.0], [2.0, 2.0]], [1.0, 1.0]) == pytest.approx(2.0)


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
