"""How much of the differences between trials each parameter explains, beside what chance gives."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from hotlap.report.page.wording import is_number

_GROUPS = 3
"""Groups that the values of a number are divided into: enough to see a best value in the middle."""
_SHUFFLES = 500
_CHANCE = 0.95
LEAST_TRIALS = 8


@dataclass(frozen=True)
class Importance:
    """One parameter."""

    name: str
    share: float
    """Of the variance of the values' ranks, 0 to 1: between groups of the parameter's values."""
    chance: float
    """What a parameter without any effect stays below in 19 of 20 cases, with as many trials."""


def importances(
    parameters: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> list[Importance]:
    """Return the parameters, the most important first; none if there are too few trials.

    Args:
        parameters: of each trial, name -> value.
        values: of each trial, taken after the same number of steps.
    """
    if len(values) < LEAST_TRIALS:
        return []
    ranks = _ranks(values)
    names = dict.fromkeys(name for each in parameters for name in each)
    found = []
    for name in names:
        groups = _groups([each.get(name) for each in parameters])
        if len(set(groups)) > 1:
            found.append(Importance(name, _explained(groups, ranks), _by_chance(groups, ranks)))
    return sorted(found, key=lambda each: -each.share)


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the place of each value in their order; equal ones share theirs."""
    order = sorted(values)
    places: dict[float, list[int]] = {}
    for place, value in enumerate(order):
        places.setdefault(value, []).append(place)
    return [fmean(places[value]) for value in values]


def _groups(values: Sequence[Any]) -> list[Any]:
    """Return the group of each value: itself, or for many numbers the third that it is in.

    Trials without a value are a group of their own.
    """
    numbers = [value for value in values if value is not None]
    distinct = {repr(value) for value in values}
    if len(distinct) <= _GROUPS or not all(map(is_number, numbers)):
        return [repr(value) for value in values]
    places = dict(zip(numbers, _ranks(numbers), strict=True))
    return [
        None if value is None else min(_GROUPS - 1, int(places[value] * _GROUPS / len(numbers)))
        for value in values
    ]


def _explained(groups: Sequence[Any], ranks: Sequence[float]) -> float:
    middle = fmean(ranks)
    total = sum((rank - middle) ** 2 for rank in ranks)
    members: dict[Any, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    between = sum(len(row) * (fmean(row) - middle) ** 2 for row in members.values())
    return between / total if total else 0.0


def _by_chance(groups: Sequence[Any], ranks: Sequence[float]) -> float:
    # The same page of the same document.
    generator, shuffled, found = random.Random(len(ranks)), list(ranks), []
    for _ in range(_SHUFFLES):
        generator.shuffle(shuffled)
        found.append(_explained(groups, shuffled))
    return sorted(found)[int(_CHANCE * _SHUFFLES)]
