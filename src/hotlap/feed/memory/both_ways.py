"""Finds a sample that differs if it is made from a kept first part of `__getitem__`."""

import time
from collections.abc import Mapping
from typing import Any

from hotlap import rng
from hotlap.feed.memory.item_calls import index_of
from hotlap.feed.memory.values import are_same, copy_of
from hotlap.feed.purity.item_code import Divided

_VERIFY_S = 1.0
"""Seconds after which no further sample is made in both ways."""


def find_other_sample(
    divided: Divided, dataset: Any, held: Mapping[Any, tuple[Any, ...]]
) -> Any | None:
    """Return the index of a sample that is another one without what is held, None if all are equal.

    Both are made under the same random states, which are put back.

    Args:
        divided: the code of its `__getitem__`.
        dataset: the data set.
        held: what the first part computes, by `key_of` the index.
    """
    until = time.monotonic() + _VERIFY_S
    made: list[tuple[Any, Any, Any]] = []
    # Before any of them is made whole: that may leave behind what its rest needs.
    for number, (key, values) in enumerate(held.items()):
        with rng.other_random_states():
            rng.reseed(number)
            sample = divided.rest(dataset, index_of(key), *copy_of(values))
            made.append((index_of(key), sample, rng.global_random_states()))
        if time.monotonic() > until:
            break
    for number, (index, ours, ended) in enumerate(made):
        with rng.other_random_states():
            rng.reseed(number)
            plain = type(dataset).__getitem__(dataset, index)
            other = rng.generator_that_advanced(ended)
        if other is not None or not are_same(copy_of(plain), ours):
            return index
        if time.monotonic() > until and number:
            break
    return None
