"""The fastest of several sizes: all take turns, those that are surely slower leave."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from hotlap.lab.statistics import Ratio, paired_ratio

_TURN_S = 0.4
"""Seconds that the counted steps of a turn should take."""
_STEPS = (1, 50)
_MUCH_SLOWER = 1.4
_SLOW_SIZES = 2
"""Sizes in a row that take so many times as long end the way down: smaller ones only lose."""
_COLD = 1.8
"""A size that takes so many times as long in its first turn, while memory is still being taken, may
be the fastest in its next one."""
_AS_FAST = 1.03
"""A size that takes so many times as long is as good as the fastest."""
_ENOUGH_ROUNDS, _ROUNDS = 7, 50
"""Rounds after which the slower ones leave, and rounds in all."""


@dataclass(frozen=True)
class Turn:
    """What one turn took; `seconds` is None where it ran out of memory."""

    seconds: float | None
    samples: int
    steps: int


@dataclass
class Paces:
    """Seconds per sample of each size, turn by turn."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    slow: set[int] = field(default_factory=set)
    """Sizes that left after their first turn: the machine may have slowed down since."""

    @property
    def fastest(self) -> int | None:
        """The size that takes least time, of those that took turns to the end; None if none did."""
        most = max(map(len, self.seconds.values()), default=0)
        left = [size for size, turns in self.seconds.items() if len(turns) == most]
        raced = [size for size in left if size not in self.slow]
        return min(raced or left, key=self.of, default=None)

    def of(self, size: int) -> float:
        """Return the seconds that a sample takes."""
        return median(self.seconds[size])

    @property
    def rates(self) -> Mapping[int, float]:
        """Samples per second, by size."""
        return {size: 1 / self._comparable(size) for size in sorted(self.seconds)}

    def _comparable(self, size: int) -> float:
        """Return seconds per sample; of a size that left, as if it had taken the later turns."""
        fastest = self.fastest
        assert fastest is not None
        if len(self.seconds[size]) == len(self.seconds[fastest]):
            return self.of(size)
        return self.of(fastest) * max(1.0, self.times_faster(fastest, size))

    def times_faster(self, size: int, than: int) -> float:
        """Return how many times faster a size is than another, turn by turn."""
        return self.ratio(size, than).median

    def ratio(self, size: int, than: int) -> Ratio:
        """Return the same with its interval."""
        both = min(len(self.seconds[size]), len(self.seconds[than]))
        return paired_ratio(self.seconds[than][:both], self.seconds[size][:both])


def sizes_to_time(largest: int) -> list[int]:
    """Return the largest size and every power of two below it, the largest first."""
    powers = [1 << exponent for exponent in range(largest.bit_length())]
    return sorted({largest, *powers}, reverse=True)


def find_fastest(
    take: Callable[[int, int], Turn],
    sizes: Sequence[int],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Paces:
    """Return what samples take in micro-batches of each size.

    Args:
        take: takes a turn: a size, and the steps that count.
        sizes: the largest first.
        seconds: about how long it may take; one round at least. It ends before once all that are
            left are equally fast.
        clock: says how late it is, in seconds.
    """
    begun = clock()
    paces, steps = _first_round(take, sizes, lambda: clock() - begun > seconds)
    orders = random.Random(0)
    racing = [size for size in paces.seconds if _is_close(paces, size, _COLD)]
    close = [size for size in racing if _is_close(paces, size, _MUCH_SLOWER)]
    paces.slow = {size for size in paces.seconds if size not in racing}
    for number in range(1, _ROUNDS + 1):
        if len(racing) < 2 or (number > 1 and clock() - begun > seconds):
            break
        for size in orders.sample(racing, len(racing)):
            turn = take(size, steps[size])
            if turn.seconds is None:
                paces.seconds.pop(size)
            elif number == 1:
                # The first turn may have compiled, or filled what is kept.
                paces.seconds[size] = [turn.seconds / turn.samples]
            else:
                paces.seconds[size].append(turn.seconds / turn.samples)
        racing = [size for size in racing if size in paces.seconds]
        if number == 1:
            racing = [s for s in racing if s in close or _is_close(paces, s, _MUCH_SLOWER)]
        if number >= _ENOUGH_ROUNDS:
            racing = _still_open(paces, racing)
    return paces


def _still_open(paces: Paces, racing: Sequence[int]) -> list[int]:
    """Return the sizes that may be the fastest; none if it does not matter which of them is."""
    fastest = min(racing, key=paces.of, default=None)
    if fastest is None:
        return []
    ratios = {size: paces.ratio(fastest, size) for size in racing if size != fastest}
    left = [size for size, ratio in ratios.items() if ratio.low <= 1]
    if all(ratios[size].high <= _AS_FAST for size in left):
        return []
    return [fastest, *left]


def _first_round(
    take: Callable[[int, int], Turn], sizes: Sequence[int], is_late: Callable[[], bool]
) -> tuple[Paces, dict[int, int]]:
    """Take one turn of each, as long as smaller sizes are not much slower; return the steps that
    later turns have, too."""
    paces, steps, slow = Paces(), {}, 0
    for size in sizes:
        turn = take(size, 1)
        if turn.seconds is None:
            continue
        paces.seconds[size] = [turn.seconds / turn.samples]
        least, most = _STEPS
        steps[size] = min(most, max(least, round(_TURN_S * turn.steps / turn.seconds)))
        slow = 0 if _is_close(paces, size, _MUCH_SLOWER) else slow + 1
        if slow == _SLOW_SIZES or (slow and is_late()):
            break
    return paces, steps


def _is_close(paces: Paces, size: int, times: float) -> bool:
    fastest = paces.fastest
    return fastest is not None and paces.of(size) <= times * paces.of(fastest)
