"""`Clock`, the budget of a diagnosis, and `RaceTime`, the seconds that a race of trials takes."""

import math
import time
from dataclasses import dataclass, field

from hotlap.host.probes import affinity
from hotlap.lab.turn_lengths import turn_length, usable_steps, warm_up_lengths
from hotlap.trace.schema import Trace

TURN_S = 0.4
SHORT_TURN_S = 0.15
"""Of a race that does not fit into a budget otherwise; it takes a larger gain to be sure of one."""
ROUNDS = 10
_LEAST_ROUNDS = 3
"""Fewer say nothing."""
_START_S = 0.7
"""What a process takes on top of the set-up that was watched: its view of the files, its end."""


@dataclass
class Clock:
    """A budget that runs out.

    Args:
        seconds: how long everything may take together.
    """

    seconds: float
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self.started)

    @property
    def deadline(self) -> float:
        """The end, as `time.monotonic()` counts."""
        return self.started + self.seconds


@dataclass(frozen=True)
class RaceTime:
    """What races of a script take.

    Args:
        trace: the plain run.
        planned_steps: steps of the whole run; None if that is not known, or does not matter.
        age: steps that each process takes before its first turn that counts.
        turn_s: seconds that a turn should take.
        epoch: steps of an epoch, if turns shall take whole ones.
    """

    trace: Trace
    planned_steps: int | None
    age: int = 0
    turn_s: float = TURN_S
    epoch: int | None = None

    @property
    def step_ms(self) -> float:
        """What a step takes, its share of an epoch's beginning included where that counts."""
        return self.trace.step_ms()["median" if self.epoch is None else "mean"]

    def seconds(self, arms: int, rounds: int = ROUNDS) -> float:
        """Return about how long a race of so many arms takes, beside the plain run's two."""
        arms += 2
        step_ms = self.step_ms
        warm_up = warm_up_lengths(self.planned_steps, step_ms, self.age)
        steps = turn_length(self.turn_s, ROUNDS, self.planned_steps, step_ms, warm_up, self.epoch)
        start_s = self.trace.setup_s + _START_S
        again_s = start_s + sum(warm_up) * step_ms / 1000
        again = 0
        if self.planned_steps is not None:
            turns = max(1, (usable_steps(self.planned_steps) - sum(warm_up)) // steps)
            again = math.ceil(rounds / turns) - 1
        # The first processes start side by side; those that take the place of others one by one.
        starts_s = math.ceil(arms / affinity()) * start_s
        turns_s = arms * (sum(warm_up) + rounds * steps) * self.trace.step_ms()["mean"] / 1000
        return starts_s + turns_s + arms * again * again_s

    def arms_that_fit(self, wanted: int, left_s: float) -> int:
        """Return how many of the wanted arms can take the fewest rounds in what is left."""
        fitting = [n for n in range(1, wanted + 1) if self.seconds(n, _LEAST_ROUNDS) <= left_s]
        return max(fitting, default=0)

    @property
    def least_s(self) -> float:
        """What the smallest race takes."""
        return self.seconds(1, _LEAST_ROUNDS)
