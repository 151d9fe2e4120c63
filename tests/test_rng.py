"""Whether something was drawn, and whether two samples are the same, to the bit."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hotlap import rng
from hotlap.feed.purity.same_bytes import same_bytes


@pytest.fixture(autouse=True)
def seeded() -> None:
    rng.reseed(5)


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (random.random, "Python's global RNG"),
        (lambda: random.gauss(0, 1), "Python's global RNG"),
        (np.random.random, "numpy's global RNG"),
        (np.random.standard_normal, "numpy's global RNG"),
        # As many numbers as the generator makes at once: only they are others then.
        (lambda: np.random.bytes(4 * 624), "numpy's global RNG"),
        (lambda: torch.rand(1), "torch's global RNG"),
        (lambda: torch.randn(1), "torch's global RNG"),
    ],
)
def test_a_draw_is_seen_and_undone(draw: Callable[[], Any], name: str) -> None:
    # Of a pair of Gaussian numbers the second is kept: to take it moves nothing else.
    for warm_up in (lambda: None, draw):
        warm_up()
        before = rng.global_random_states()
        assert rng.generator_that_advanced(before) is None
        first = draw()
        assert rng.generator_that_advanced(before) == name
        rng.restore(before)
        assert rng.generator_that_advanced(before) is None
        assert draw() == first


def test_the_second_of_two_gaussian_numbers_is_a_draw() -> None:
    np.random.standard_normal()
    before = rng.global_random_states()
    np.random.standard_normal()
    assert rng.generator_that_advanced(before) == "numpy's global RNG"


def test_samples_are_the_same_if_their_bits_are_and_their_kind() -> None:
    zeros = torch.zeros(4, dtype=torch.float32)
    assert same_bytes(zeros, zeros.clone())
    assert not same_bytes(zeros, zeros.int())
    assert not same_bytes(zeros, zeros.view(2, 2))
    assert not same_bytes(zeros, -zeros)
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bytes(nan, nan.clone())
    assert same_bytes(torch.arange(4.0)[::2], torch.tensor([0.0, 2.0]))
