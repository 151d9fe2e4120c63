"""The search for the largest size that fits, with made-up memory."""

import math
from collections.abc import Callable

import pytest

from hotlap.tuning.micro_batches.search import Fit, find_largest, largest_of

LIMIT = 1000
Held = Callable[[int], float]


def trials(held: Held, most: int, tried: tuple[Fit, ...] = ()) -> tuple[list[int], list[Fit]]:
    """Search; return the sizes that were tried in turn, and all trials."""
    sizes: list[int] = []

    def attempt(size: int) -> Fit:
        assert 1 <= size <= most
        sizes.append(size)
        fits = held(size) <= LIMIT
        # What does not fit ends before it has held all that it wants.
        peak = int(held(size)) if fits else LIMIT
        return Fit(size, peak, int(held(0)), "" if fits else "no memory")

    return sizes, find_largest(attempt, most, LIMIT, tried)


HELD: dict[str, Held] = {
    "linear": lambda n: 200 + 3 * n,
    "a little per sample": lambda n: 900 + 0.01 * n,
    "square": lambda n: 100 + n * n / 50,
    "square root": lambda n: 100 + 40 * math.sqrt(n),
    "in steps": lambda n: 100 + 64 * (n // 10),
    "nothing up to a cliff": lambda n: 300 if n < 173 else 5000,
    "a constant, then linear": lambda n: max(500, 5 * n),
}


@pytest.mark.parametrize("most", [1, 2, 3, 7, 64, 100, 1000, 4097])
@pytest.mark.parametrize("kind", HELD)
def test_the_largest_is_found_and_one_more_was_tried(kind: str, most: int) -> None:
    held = HELD[kind]
    sizes, found = trials(held, most)
    best = largest_of(found)
    expected = max(n for n in range(1, most + 1) if held(n) <= LIMIT)
    assert best is not None
    assert best.size == expected
    assert expected == most or any(each.size == expected + 1 and not each.fits for each in found)
    assert len(sizes) == len(set(sizes))
    assert len(sizes) <= 4 * most.bit_length() + 2


def test_linear_memory_takes_few_trials() -> None:
    sizes, _ = trials(HELD["linear"], 4096)
    assert sizes[:6] == [4096, 2048, 1024, 512, 256, 266]
    assert len(sizes) <= 8


def test_nothing_fits() -> None:
    sizes, found = trials(lambda n: 2000, 64)
    assert largest_of(found) is None
    assert sizes == [64, 32, 16, 8, 4, 2, 1]


def test_what_was_tried_is_not_tried_again() -> None:
    known = (Fit(4096, LIMIT, why="no memory"), Fit(200, 800, 200))
    sizes, found = trials(HELD["linear"], 4096, known)
    assert sizes == [266, 267]
    assert {each.size for each in found} == {4096, 200, 266, 267}
