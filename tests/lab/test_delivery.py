"""Clipping that is read off the plain run: norms of large models, in float32, are not one."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from hotlap.lab.delivery import DELIVERY_LIMIT, check_delivery

LIMIT, UPDATES = 0.25, 100
Row = Mapping[str, Any]


def rows(
    seed: int,
    *,
    noise: float,
    change: Callable[[int], float] = lambda _: 1.0,
    updates: int = UPDATES,
    clips_one_of: int = 1,
) -> list[Row]:
    """Return updates, some of which are clipped, with norms that are off.

    Args:
        seed: of the norms.
        noise: their standard deviation, as a share of a norm.
        change: called with an update; the factor that its gradients have beside.
        updates: how many.
        clips_one_of: one of so many is clipped.
    """
    drawn = random.Random(seed)
    found = []
    for number in range(updates):
        row: dict[str, Any] = dict.fromkeys(("unseen", "lost", "old", "carried"), 0)
        row |= {"optimizer": 0, "followed": 2, "largest": 0.01}
        if number % clips_one_of:
            found.append(row | {"norm": 0.8 * LIMIT})
            continue
        norm = LIMIT * change(number) * (1 + drawn.gauss(0, noise))
        found.append(
            row | {"norm": norm, "scale": drawn.uniform(0.3, 0.6), "rest": 0.0, "ceiling": None}
        )
    return found


def checked(plain: list[Row], other: list[Row]) -> Any:
    records = ({"delivered": {"updates": each, "problem": ""}} for each in (plain, other))
    return check_delivery(*records)


@pytest.mark.parametrize(("noise", "limit"), [(1e-6, DELIVERY_LIMIT), (8e-5, 6.4e-4)])
def test_the_noise_of_norms_is_no_way_of_its_own(noise: float, limit: float) -> None:
    found = checked(rows(1, noise=noise), rows(2, noise=noise))
    assert (found.state, "clipped to a norm of 0.25" in found.evidence) == ("passed", True)
    assert found.limit == pytest.approx(limit, rel=0.3)


@pytest.mark.parametrize("clips_one_of", [1, 3, 15])
@pytest.mark.parametrize("noise", [3e-5, 1e-4, 2e-4])
def test_noise_is_never_a_change(noise: float, clips_one_of: int) -> None:
    """Of few clipped updates nothing is known, and the check says so."""
    states = set()
    noise /= 1 + (clips_one_of == 15)
    for seed in range(150):
        runs = [rows(2 * seed + k, noise=noise, clips_one_of=clips_one_of) for k in range(2)]
        states.add(checked(*runs).state)
    assert "failed" not in states
    assert "passed" in states or clips_one_of == 15


def test_norms_that_differ_by_more_follow_no_limit() -> None:
    assert checked(rows(1, noise=2e-3), rows(2, noise=2e-3)).state == "partial"


@pytest.mark.parametrize("noise", [1e-6, 5e-5])
def test_another_limit_is_found(noise: float) -> None:
    """In one update where it is larger than the noise, in all of them where it is smaller."""
    plain = rows(1, noise=noise)
    once = checked(plain, rows(2, noise=noise, change=lambda n: 1.002 if n == 21 else 1.0))
    assert once.state == "failed" and once.evidence.startswith("update 22:")
    always = checked(plain, rows(2, noise=noise, change=lambda _: 1.00015))
    assert always.state == "failed"
    assert ("on average" in always.evidence) is (noise > 1e-5)
