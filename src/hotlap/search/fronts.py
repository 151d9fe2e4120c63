"""Orders points by several objectives at once: non-dominated sorting. No torch.

As in Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II" (2002): a point is
before those that it is better than in everything, and of points of which none is better than
another those come first that lie far from the others.
"""

import math
from collections.abc import Sequence

Point = Sequence[float]
"""One number for each objective; the smaller, the better."""


def dominates(one: Point, other: Point) -> bool:
    """True if one point is nowhere worse than another, and somewhere better."""
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def first_front(points: Sequence[Point]) -> list[int]:
    """Return the indices of the points that no other one dominates, in their order."""
    return [
        index
        for index, point in enumerate(points)
        if not any(dominates(other, point) for other in points)
    ]


def best_first(points: Sequence[Point]) -> list[int]:
    """Return the indices of all points, the best first: front by front; equal ones as given."""
    if points and len(points[0]) == 1:
        return sorted(range(len(points)), key=lambda index: points[index][0])
    left, order = list(range(len(points))), list[int]()
    while left:
        front = [left[place] for place in first_front([points[index] for index in left])]
        apart = _distances([points[index] for index in front])
        order += [front[place] for place in sorted(range(len(front)), key=lambda k: -apart[k])]
        left = [index for index in left if index not in front]
    return order


def _distances(points: Sequence[Point]) -> list[float]:
    """Return how far each point of a front lies from its neighbors; its ends lie infinitely far."""
    found = [0.0] * len(points)
    for axis in range(len(points[0])):
        order = sorted(range(len(points)), key=lambda index: points[index][axis])
        span = points[order[-1]][axis] - points[order[0]][axis]
        found[order[0]] = found[order[-1]] = math.inf
        for before, index, after in zip(order, order[1:], order[2:], strict=False):
            if span:
                found[index] += (points[after][axis] - points[before][axis]) / span
    return found
