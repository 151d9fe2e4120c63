"""`LossCurves`: the losses of a plain run and of a plan, over the steps that a proof followed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, isfinite
from statistics import fmean, stdev
from typing import Any

MOST_POINTS = 64
_LEAST_EACH = 4
"""Losses of a point from which on their spread says something."""


@dataclass(frozen=True)
class LossCurves:
    """Means of consecutive losses; what is not finite is None."""

    steps: tuple[int, ...]
    """The last step of each point, from 1 on."""
    plain: tuple[float | None, ...]
    plan: tuple[float | None, ...]
    low: tuple[float | None, ...]
    """The lower end of the plain run's noise; empty if that is not known."""
    high: tuple[float | None, ...]
    each: int
    """Losses of a point, at most: as many as steps, unless a step computes several."""
    band: str
    """What `low` and `high` are: `seeds`, the plain run's lowest and highest seed; `batches`, two
    standard errors of each mean; or empty."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LossCurves":
        """Read back what `to_json` wrote."""
        rows: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**rows)


def loss_curves(
    plain: Sequence[float],
    plan: Sequence[float],
    seeds: Sequence[Sequence[float]] = (),
    steps: int | None = None,
) -> LossCurves | None:
    """Return both runs' losses as a picture shows them, None where there are none.

    Args:
        plain: losses of the plain run, the same number in each step.
        plan: losses of the run under a plan.
        seeds: losses of plain runs from several seeds, where these were trained. They may be
            shorter.
        steps: that the runs took; one for each loss if None.
    """
    count = min(len(plain), len(plan))
    if count < 2:
        return None
    in_step = count / (steps or count)
    shortest = min((len(row) for row in seeds), default=0)
    if len(seeds) > 1:
        count = min(count, shortest)
    each = ceil(count / MOST_POINTS)
    if len(seeds) < 2 and count >= 2 * _LEAST_EACH:
        each = max(each, _LEAST_EACH)
    bins = [range(begin, min(begin + each, count)) for begin in range(0, count, each)]
    low, high, band = _noise(plain, seeds, bins)
    return LossCurves(
        steps=tuple(ceil((places[-1] + 1) / in_step) for places in bins),
        plain=tuple(_mean(plain, places) for places in bins),
        plan=tuple(_mean(plan, places) for places in bins),
        low=low,
        high=high,
        each=each,
        band=band,
    )


_Ends = tuple[float | None, ...]


def _noise(
    plain: Sequence[float], seeds: Sequence[Sequence[float]], bins: Sequence[range]
) -> tuple[_Ends, _Ends, str]:
    if len(seeds) > 1:
        means = [[_mean(row, steps) for row in seeds] for steps in bins]
        low = tuple(None if None in row else min(_known(row)) for row in means)
        high = tuple(None if None in row else max(_known(row)) for row in means)
        return low, high, "seeds"
    if len(bins[0]) < _LEAST_EACH:
        return (), (), ""
    ends = [_two_errors(plain, steps) for steps in bins]
    return tuple(end[0] for end in ends), tuple(end[1] for end in ends), "batches"


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(losses: Sequence[float], steps: range) -> float | None:
    values = [losses[step] for step in steps]
    mean = fmean(values) if all(map(isfinite, values)) else inf
    return mean if isfinite(mean) else None


def _two_errors(losses: Sequence[float], steps: range) -> tuple[float | None, float | None]:
    mean = _mean(losses, steps)
    if mean is None or len(steps) < 2:
        return None, None
    error = stdev(losses[step] for step in steps) / len(steps) ** 0.5
    return mean - 2 * error, mean + 2 * error
