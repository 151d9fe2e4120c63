"""Hyperparameters of a new trial: the recipe's own, a grid's point, or drawn values. No torch."""

import itertools
import logging
import math
import random
from collections.abc import Mapping
from typing import Any

from hotlap.errors import UsageError
from hotlap.search.parameters import Space
from hotlap.search.space import Distribution, IntRange, LogUniform, Uniform, Value, from_json
from hotlap.search.state import SearchState

log = logging.getLogger("hotlap")

_ATTEMPTS = 100
"""Draws until one is new."""
_FEW = 4096
"""Configurations of a space in which those that were not tried are looked for one by one."""


def propose(space: Space, state: SearchState) -> Mapping[str, Value | None]:
    """Return the values of the next trial, derived ones included.

    Trial 0 is the recipe's own configuration, where all of its parameters have defaults.
    """
    spec = state.spec
    number = len(state.trials)
    if number == 0 and spec.defaults is not None:
        return dict(spec.defaults)
    if spec.method == "grid":
        points = grid_points(space, spec.points)
        return next(each for each in points if not _is_tried(each, state))
    if spec.method == "tpe":
        from hotlap.search.tpe import suggest

        try:
            found = space.complete(suggest(space.distributions, state))
            if not _is_tried(found, state):
                return found
            log.info("trial %d is drawn at random instead: %s was tried before", number, found)
        except Exception as error:
            log.info("trial %d is drawn at random instead: %s", number, error)
    return draw(space, state)


def _is_tried(values: Mapping[str, Value], state: SearchState) -> bool:
    return any(trial.values == values for trial in state.trials)


def draw(space: Space, state: SearchState) -> dict[str, Value]:
    """Return values drawn at random, derived ones included; others than those of earlier trials, if
    possible.

    Values for which a derived parameter has none are drawn again: the same in each process.

    Raises:
        UsageError: a derived parameter has no value for any that was drawn.
    """
    number, distributions = len(state.trials), space.distributions
    drawn: dict[str, Value] = {}
    found: dict[str, Value] | None = None
    problem: Exception | None = None
    for attempt in range(_ATTEMPTS):
        # Each parameter has numbers of its own: another parameter does not change them.
        drawn = {
            name: each.draw(random.Random(f"{state.spec.seed} {number} {attempt} {name}").random())
            for name, each in distributions.items()
        }
        try:
            found = space.complete(drawn)
        except Exception as error:
            log.info("trial %d is drawn again, no derived value for %s: %s", number, drawn, error)
            problem = error
            continue
        if not _is_tried(found, state):
            return found
    if found is None:
        raise UsageError(
            f"the Derived parameters ({', '.join(space.derived)}) have no value for any of "
            f"{_ATTEMPTS} configurations that were drawn. The last, {drawn}, raised "
            f"{type(problem).__name__}: {str(problem).rstrip('.')}. Make the functions in "
            "`hotlap.Derived(...)` in task() accept all values of the ranges, or use narrower "
            "ranges, in task() or --space."
        ) from problem
    left = [each for each in configurations(space, _FEW) or () if not _is_tried(each, state)]
    return random.Random(f"{state.spec.seed} {number}").choice(left) if left else found


def configurations(space: Space, at_most: int) -> list[dict[str, Value]] | None:
    """Return all values that a trial can have, derived ones included; None if these are more.

    Points for which a derived parameter has no value are left out.
    """
    if math.prod(map(_count, space.distributions.values())) > at_most:
        return None
    found: list[dict[str, Value]] = []
    for point in grid(space.distributions, at_most):
        try:
            values = space.complete(point)
        except Exception as error:
            log.info("%s is skipped, it has no derived value: %s", point, error)
            continue
        if values not in found:
            found.append(values)
    return found


def _count(each: Distribution) -> float:
    """Return how many values a distribution has."""
    if isinstance(each, Uniform | LogUniform):
        return math.inf
    return each.high - each.low + 1 if isinstance(each, IntRange) else len(each.grid(1))


def grid_points(space: Space, points: int) -> list[dict[str, Value]]:
    """Return the values of a grid's trials, each once, without those that are the recipe's own.

    Raises:
        UsageError: the grid is empty, or a derived parameter has no value at one of its points.
    """
    found: list[dict[str, Value]] = []
    for point in grid(space.distributions, points):
        try:
            values = space.complete(point)
        except Exception as error:
            raise UsageError(
                f"the Derived parameters ({', '.join(space.derived)}) have no value for the grid's "
                f"point {point}: {type(error).__name__}: {str(error).rstrip('.')}. Make the "
                "functions in `hotlap.Derived(...)` in task() accept this point, or use --method "
                "random, which draws other values then."
            ) from error
        if values != space.defaults and values not in found:
            found.append(values)
    return found


def grid(distributions: Mapping[str, Distribution], points: int) -> list[dict[str, Value]]:
    """Return all points of a grid.

    Raises:
        UsageError: it is empty.
    """
    axes = [[(name, value) for value in each.grid(points)] for name, each in distributions.items()]
    found = [dict(values) for values in itertools.product(*axes)]
    if not found:
        raise UsageError(f"--points {points} gives an empty grid. Expected: 1 or more.")
    return found


def distributions_of(space: Mapping[str, Any]) -> dict[str, Distribution]:
    """Return the distributions of a space that is plain data."""
    return {name: from_json(each) for name, each in space.items() if each["kind"] != "derived"}
