"""The better of two finalists is called better no more often than one would be."""

import random
from collections.abc import Mapping, Sequence

import pytest

from hotlap.search.result import SearchResult
from hotlap.search.spec import SearchSpec
from hotlap.search.state import Job, Outcome, SearchState

OWN, FIRST, SECOND = 0, 1, 2
"""Trials: the recipe's own values, and the finalists as the search's own seed orders them."""
Seeds = Mapping[int, Sequence[float]]


def result_of(seeds: Seeds, at_first: Sequence[float] = (9.0, 0.0, 1.0)) -> SearchResult:
    """Return a search of three trials whose losses with other seeds are given."""
    spec = SearchSpec("recipe.py", (), {}, {"lr": 0.1}, (90,), method="random", trials=3)
    state = SearchState(spec)

    def end(job: Job, value: float) -> None:
        state.apply({"kind": "job", **job._asdict(), "values": {"lr": 0.1}})
        outcome = Outcome(job, "done", step=90, value=value)
        state.apply({"kind": "result", **outcome.to_json()})

    for number, value in enumerate(at_first):
        end(Job(number, 0), value)
    for number, values in seeds.items():
        for seed, value in enumerate(values, 1):
            end(Job(number, 0, seed), value)
    return SearchResult(state)


def verdict(seeds: Seeds) -> str:
    found = result_of(seeds).comparison
    assert found is not None
    return found.verdict


def test_equal_configurations_are_called_better_as_rarely_as_it_says() -> None:
    """The better of two was called so in 8.5 % of 20,000 searches."""
    generator = random.Random(1)
    called = 0
    for _ in range(1500):
        drawn = {trial: [generator.gauss(0, 1) for _ in range(3)] for trial in (0, 1, 2)}
        found = result_of(drawn).comparison
        called += found is not None and found.verdict == "better"
    assert 0.03 < called / 1500 < 0.065


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # The second is the best one by these seeds, and they have chosen it.
        ([4.0, 5.0, 7.5], [1.0, 2.0, 3.0], "same"),
        ([4.0, 5.0, 5.5], [1.0, 2.0, 3.0], "better"),
        # Where the first is the best one, no seed has chosen it.
        ([1.0, 2.0, 3.0], [4.0, 5.0, 7.5], "better"),
    ],
)
def test_the_finalist_that_the_other_seeds_have_chosen_is_better_if_the_first_is_too(
    first: list[float], second: list[float], expected: str
) -> None:
    found = result_of({OWN: [6.0, 7.0, 8.0], FIRST: first, SECOND: second})
    best, comparison = found.best, found.comparison
    assert best is not None and comparison is not None
    assert best.number == (SECOND if second < first else FIRST)
    assert comparison.verdict == expected
    # What the verdict is, its interval says as well.
    assert (comparison.low > 0) is (expected == "better")
    assert found.to_json()["comparison"]["verdict"] == expected


def test_what_is_worse_or_the_only_other_finalist_is_judged_by_itself() -> None:
    own, worse = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    assert verdict({OWN: own, FIRST: worse, SECOND: [7.0, 8.0, 9.0]}) == "worse"
    # The recipe's own values are a finalist: there is no choice between two others.
    alone = result_of({OWN: [4.0, 5.0, 6.0], SECOND: [1.0, 2.0, 3.0]}, (0.0, 9.0, 1.0))
    assert alone.comparison is not None and alone.comparison.verdict == "better"
