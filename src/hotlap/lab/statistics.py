"""Paired ratios, confidence intervals, and the noise floor that a claim must exceed. No torch."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

BLOCK = 2
"""Neighbouring rounds that are drawn together: on shared hosts they are alike, and drawing single
rounds made intervals too narrow."""
SAFETY = 1.5
"""Processes of the same script differ for as long as they live (where their memory lies, say), by
up to 14 % on a shared host. Of three such values a fourth lies outside the span in one case of
eight, outside one and a half spans in one of fifteen; a claim needs two races, with fresh processes
in each."""
SMALLEST_FLOOR = 0.02
LEAST_BY_MEANS = 1.01
"""What a gain must come to by the means of all turns. Medians do not show what lengthens few steps:
a collector of garbage, a reader that stalls."""
MOST_NOISE_OF_MEANS = 0.05
"""How far below that the means may fall because identical runs differ by as much in theirs. Where
means are noisier than this they could hide a loss, and a gain near it is not claimed."""
RESAMPLES = 2000
COVERAGE = 0.95


@dataclass(frozen=True)
class Ratio:
    """How many times faster B is than A: the median of paired ratios, with its interval."""

    median: float
    low: float
    high: float
    pairs: int


@dataclass(frozen=True)
class Spread:
    """A median in ms, with the interval of the median."""

    median: float
    low: float
    high: float
    n: int


def figures(ratio: Ratio) -> str:
    """Return `1.06x (1.04 to 1.10)`."""
    return f"{ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def paired_ratio(base_ms: Sequence[float], other_ms: Sequence[float]) -> Ratio:
    """Return base / other by pairs, so that a machine that drifts slows both.

    Args:
        base_ms: ms per step of the baseline, one a round.
        other_ms: ms per step of the other, same rounds.

    Raises:
        ValueError: the two differ in length, or hold nothing.
    """
    if len(base_ms) != len(other_ms) or not base_ms:
        raise ValueError(f"{len(base_ms)} and {len(other_ms)} rounds cannot be paired")
    ratios = [base / other for base, other in zip(base_ms, other_ms, strict=True)]
    low, high = interval(ratios)
    return Ratio(median(ratios), low, high, len(ratios))


def median_pair(base_ms: Sequence[float], other_ms: Sequence[float]) -> tuple[float, float]:
    """Return the pair whose ratio is the median of `paired_ratio`.

    Medians of each side by itself have another ratio where a machine drifts. Of an even number of
    pairs it is what the two in the middle take on average, the other side by the median ratio.
    """
    pairs = sorted(zip(base_ms, other_ms, strict=True), key=lambda pair: pair[0] / pair[1])
    upper = len(pairs) // 2
    if len(pairs) % 2:
        return pairs[upper]
    base = fmean(pair[0] for pair in pairs[upper - 1 : upper + 1])
    return base, base / median(base / other for base, other in pairs)


def spread(values_ms: Sequence[float]) -> Spread:
    """Return the median of ms per step, with its interval."""
    low, high = interval(values_ms)
    return Spread(median(values_ms), low, high, len(values_ms))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the bootstrap interval of the median over blocks of neighbours, reproducibly."""
    count = len(values)
    if count < 2 * BLOCK:
        return min(values), max(values)
    generator = random.Random(count)
    starts = range(count - BLOCK + 1)
    medians = []
    for _ in range(RESAMPLES):
        drawn: list[float] = []
        while len(drawn) < count:
            start = generator.choice(starts)
            drawn.extend(values[start : start + BLOCK])
        medians.append(median(drawn[:count]))
    medians.sort()
    tail = (1 - COVERAGE) / 2
    return medians[int(tail * RESAMPLES)], medians[int((1 - tail) * RESAMPLES) - 1]


def noise_floor(twins_ms: Sequence[Sequence[float]]) -> float:
    """Return how far identical runs may be apart here, as |ratio - 1|.

    The largest difference between any two of a few twins, times `SAFETY`; never less than
    `SMALLEST_FLOOR`.

    Args:
        twins_ms: per twin, ms per step by round. At least two twins.
    """
    if len(twins_ms) < 2:
        raise ValueError("a noise floor needs at least two identical runs")
    largest = max(
        abs(paired_ratio(twins_ms[a], twins_ms[b]).median - 1)
        for a in range(len(twins_ms))
        for b in range(a + 1, len(twins_ms))
    )
    return max(SMALLEST_FLOOR, SAFETY * largest)


def is_gain(ratio: Ratio, floor: float) -> bool:
    """True if even the lower end of the interval lies above what identical runs differ by."""
    return ratio.low > 1 + floor


def ratio_of_means(twins_ms: Sequence[Sequence[float]], other_ms: Sequence[float]) -> float:
    """Return how many times faster the other is than the twins, all turns together.

    Args:
        twins_ms: per twin, mean ms per step by round.
        other_ms: the same of the other.
    """
    return fmean(fmean(twin) for twin in twins_ms) / fmean(other_ms)


def holds_by_means(twins_ms: Sequence[Sequence[float]], other_ms: Sequence[float]) -> bool:
    """True if a gain by medians shows in the means too, as far as twins agree in theirs."""
    means = [fmean(twin) for twin in twins_ms]
    noise = min(MOST_NOISE_OF_MEANS, max(means) / min(means) - 1)
    return ratio_of_means(twins_ms, other_ms) * (1 + noise) > LEAST_BY_MEANS
