"""Which size is the fastest, with made-up times."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from hotlap.tuning.micro_batches.pacing import Turn, find_fastest, sizes_to_time

BATCH = 1024


def raced(
    sample_s: Callable[[int], float],
    largest: int,
    *,
    noise: float = 0.0,
    fails: int | None = None,
    allowed_s: float = 20.0,
) -> tuple[int | None, list[int], dict[int, float]]:
    """Race; return the fastest, the sizes of all turns, and the rates."""
    draws, turns, late = random.Random(1), [], [0.0]

    def take(size: int, steps: int) -> Turn:
        turns.append(size)
        if size == fails:
            return Turn(None, 0, 0)
        seconds = sample_s(size) * BATCH * steps * (1 + noise * draws.random())
        late[0] += seconds
        return Turn(seconds, BATCH * steps, steps)

    paces = find_fastest(take, sizes_to_time(largest), seconds=allowed_s, clock=lambda: late[0])
    return paces.fastest, turns, dict(paces.rates)


def test_the_sizes_are_the_largest_and_powers_of_two() -> None:
    assert sizes_to_time(100) == [100, 64, 32, 16, 8, 4, 2, 1]
    assert sizes_to_time(64) == [64, 32, 16, 8, 4, 2, 1]
    assert sizes_to_time(1) == [1]


@pytest.mark.parametrize("best", [1, 8, 64, 100])
def test_the_fastest_is_found(best: int) -> None:
    def sample_s(size: int) -> float:
        return 1e-5 * (1 + abs(size - best) / best)

    fastest, _, _ = raced(sample_s, 100, noise=0.01)
    assert fastest == best


def test_noise_does_not_choose() -> None:
    fastest, turns, _ = raced(lambda n: 1e-5 if n == 64 else 1.05e-5, 128, noise=0.03)
    assert fastest == 64
    assert turns.count(64) == 8


def test_a_size_that_is_slow_in_its_first_turn_only_may_win() -> None:
    turns = Counter[int]()

    def take(size: int, steps: int) -> Turn:
        turns[size] += 1
        is_cold = size == 64 and turns[64] == 1
        seconds = 1.7 if is_cold else 1.0 if size == 64 else 1.1
        return Turn(seconds * steps, BATCH * steps, steps)

    paces = find_fastest(take, sizes_to_time(64), seconds=100.0, clock=lambda: 0.0)
    assert paces.fastest == 64


def test_a_size_that_left_after_one_turn_does_not_win_because_the_machine_slowed_down() -> None:
    turns = Counter[int]()

    def take(size: int, steps: int) -> Turn:
        turns[size] += 1
        seconds = 1.9 if size == 32 else 1.0
        return Turn((seconds if turns[size] == 1 else 2.2) * steps, BATCH * steps, steps)

    def clock() -> float:
        return 1e9 if turns[64] > 1 else 0.0

    paces = find_fastest(take, [64, 32, 16], seconds=1.0, clock=clock)
    assert turns[32] == 1 < turns[64]
    assert paces.fastest in (64, 16)


def test_a_noisy_machine_has_more_rounds() -> None:
    fastest, turns, _ = raced(lambda n: 1e-5 if n == 64 else 1.1e-5, 128, noise=0.8, allowed_s=60.0)
    assert fastest == 64
    assert turns.count(64) > 8


def test_a_size_that_left_is_not_chosen_because_the_machine_slowed_down_since() -> None:
    turns, draws = Counter[int](), random.Random(2)

    def take(size: int, steps: int) -> Turn:
        turns[size] += 1
        slow = 2.0 if turns[64] > 8 else 1.0
        seconds = (1.0 if size >= 32 else 1.3) * slow * (1 + 0.2 * draws.random())
        return Turn(seconds * steps, BATCH * steps, steps)

    paces = find_fastest(take, sizes_to_time(64), seconds=1.0, clock=lambda: 0.0)
    assert turns[64] > 2 * turns[16] > 0
    # The guard's control: by its own turns alone, on the faster machine, it would win.
    assert paces.of(16) < paces.of(64)
    assert paces.fastest in (64, 32)
    assert paces.rates[16] < paces.rates[64]


def test_it_ends_once_sizes_are_equally_fast() -> None:
    _, turns, _ = raced(lambda n: 1e-5, 128, noise=0.01)
    assert turns.count(64) == 8


def test_small_sizes_that_only_lose_are_not_timed() -> None:
    _, turns, _ = raced(lambda n: 1e-5 * 256 / n, 256)
    assert turns == [256, 128, 64]


def test_a_size_that_runs_out_of_memory_drops_out() -> None:
    fastest, turns, rates = raced(lambda n: 1e-5, 64, fails=64)
    assert turns.count(64) == 1
    assert 64 not in rates
    assert fastest in rates


def test_slow_steps_have_fewer_rounds() -> None:
    _, turns, _ = raced(lambda n: 1e-2, 4)
    assert all(turns.count(size) == 2 for size in (4, 2, 1))


def test_every_turn_lets_each_size_run_once() -> None:
    _, turns, _ = raced(lambda n: 1e-5, 4)
    later = turns[3:]
    rounds = [later[at : at + 3] for at in range(0, len(later), 3)]
    assert all(sorted(each) == [1, 2, 4] for each in rounds)
    # The order is another one from round to round.
    assert len({tuple(each) for each in rounds}) > 1
