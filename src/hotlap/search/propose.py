"""Hyperparameters of a new trial: the recipe's own, a grid's point, or drawn values. No torch."""

import itertools
import logging
import random
from collections.abc import Mapping
from typing import Any

from hotlap.errors import UsageError
from hotlap.search.parameters import Space
from hotlap.search.space import Distribution, Value, from_json
from hotlap.search.state import SearchState

log = logging.getLogger("hotlap")

_ATTEMPTS = 100
"""Draws until one is new; a space with few values has been tried then."""


def propose(space: Space, state: SearchState) -> dict[str, Value]:
    """Return the values of the next trial, derived ones included.

    Trial 0 is the recipe's own configuration, where all of its parameters have defaults.
    """
    spec = state.spec
    number = len(state.trials)
    if number == 0 and spec.defaults is not None:
        return dict(spec.defaults)
    if spec.method == "grid":
        points = grid(space.distributions, spec.points)
        return space.complete(points[number - (spec.defaults is not None)])
    if spec.method == "tpe":
        from hotlap.search.tpe import suggest

        try:
            return space.complete(suggest(space.distributions, state))
        except Exception as error:
            log.info("trial %d is drawn at random instead: %s", number, error)
    return draw(space, state)


def draw(space: Space, state: SearchState) -> dict[str, Value]:
    """Return values drawn at random, derived ones included; others than those of earlier trials, if
    possible.

    Values for which a derived parameter has none are drawn again: the same in each process.

    Raises:
        UsageError: a derived parameter has no value for any that was drawn.
    """
    number, distributions = len(state.trials), space.distributions
    tried = [{name: trial.values[name] for name in distributions} for trial in state.trials]
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
        if drawn not in tried:
            break
    if found is None:
        raise UsageError(
            f"the Derived parameters have no value for any of {_ATTEMPTS} configurations that were "
            f"drawn, such as {drawn}: {problem}. Use Derived functions that accept all values of "
            "the ranges, or narrower ranges in task()."
        ) from problem
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
