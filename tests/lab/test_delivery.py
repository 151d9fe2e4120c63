"""Clipping that is read off the plain run: norms of large models, in float32, are not one."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hotlap.lab.delivery import DELIVERY_LIMIT, check_delivery

LIMIT, UPDATES = 0.25, 100
Row = Mapping[str, Any]


def rows(seed: int, *, noise: float, change: Callable[[int], float] = lambda _: 1.0) -> list[Row]:
    """Return updates, three of four of which are clipped, with norms that are off by up to `noise`.

    Args:
        seed: of the norms.
        noise: as a share of a norm.
        change: called with an update; the factor that its gradients have beside.
    """
    drawn = random.Random(seed)
    found = []
    for number in range(UPDATES):
        row: dict[str, Any] = dict.fromkeys(("unseen", "lost", "old", "carried"), 0)
        row |= {"optimizer": 0, "followed": 2, "largest": 0.01}
        if number % 4 == 0:
            found.append(row | {"norm": 0.8 * LIMIT})
            continue
        norm = LIMIT * change(number) * (1 + drawn.uniform(-noise, noise))
        found.append(row | {"norm": norm, "scale": 0.4, "rest": 0.0, "ceiling": None})
    return found


def checked(other: list[Row], noise: float) -> Any:
    plain, theirs = (
        {"delivered": {"updates": updates, "problem": ""}}
        for updates in (rows(1, noise=noise), other)
    )
    return check_delivery(plain, theirs)


@pytest.mark.parametrize(("noise", "limit"), [(1e-6, DELIVERY_LIMIT), (1.5e-4, 3e-4), (4e-4, 8e-4)])
def test_the_noise_of_norms_is_no_way_of_its_own(noise: float, limit: float) -> None:
    found = checked(rows(2, noise=noise), noise)
    assert (found.state, "clipped to a norm of 0.25" in found.evidence) == ("passed", True)
    assert found.limit == pytest.approx(limit, rel=0.05)


def test_norms_that_differ_by_more_follow_no_limit() -> None:
    assert checked(rows(2, noise=3e-3), 3e-3).state == "partial"


@pytest.mark.parametrize("noise", [1e-6, 1.5e-4])
def test_another_limit_is_found(noise: float) -> None:
    """In one update where it is larger than the noise, in all of them where it is smaller."""
    once = checked(rows(2, noise=noise, change=lambda n: 1.001 if n == 21 else 1.0), noise)
    assert once.state == "failed" and once.evidence.startswith("update 22:")
    always = checked(rows(2, noise=noise / 2, change=lambda _: 1.00015), noise)
    assert always.state == "failed"
    assert ("on average" in always.evidence) is (noise > DELIVERY_LIMIT)
