"""Races: live processes that train in turns, each pair of neighbours under the same conditions."""

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from hotlap.errors import HotlapError, TrialError
from hotlap.lab.statistics import (
    Ratio,
    Spread,
    holds_by_means,
    is_gain,
    noise_floor,
    paired_ratio,
    ratio_of_means,
    spread,
)
from hotlap.lab.trial import Lab, Trial
from hotlap.lab.turn_lengths import (
    WARM_UP,
    check_length,
    skipped_steps,
    turn_length,
    usable_steps,
    warm_up_lengths,
)
from hotlap.plan import Plan

_READY_S = 180.0
_LEAST_READY_S = 5.0
_SLOWEST_STEP_S = 60.0
_SECOND_CHANCES = 2
_HOPELESS = 4.0
"""How many times slower than the plain run a plan may be in its warm-up to take part at all."""
_GIVEN_UP = 20.0
"""How many times slower than the plain run a turn may be before it is ended. With another process
on the machine, threads that wait for each other may be slower by far more."""
_GIVEN_UP_S = 30.0
"""Seconds that a turn has on top of that, for what is compiled in it."""
_ENOUGH_ROUNDS = 6
_LEAST_ROUNDS = 2


@dataclass
class Arm:
    """One way to run the script, in a race."""

    name: str
    plan: Plan
    lab: Lab
    turns_ms: list[float] = field(default_factory=list)
    """Median ms of a step, one a round; the first steps of each turn are left out (cold caches).
    On a GPU, where steps are queued, the mean."""
    means_ms: list[float] = field(default_factory=list)
    """Mean ms of a step, one a round, of the same steps."""
    is_awaited: bool = False
    """True if its start is waited for whatever is left until the deadline."""
    setup_s: float = 0.0
    """From process start to the gate, filling included."""
    techniques: list[dict[str, str]] = field(default_factory=list)
    failed: str | None = None
    """Why it was left out of the race."""
    is_slow: bool = False
    """True if it was left out because it is far slower than the plain run."""
    is_late: bool = False
    """True if it was left out because it was not ready in time."""
    trial: Trial | None = None
    warm_up: tuple[int, ...] = WARM_UP
    """Steps of the turns that do not count, in each of its processes."""
    capacity: int | None = None
    """Steps that one process has for turns, None if that is not known."""
    taken: int = 0
    """Steps that its process has taken in turns."""


@dataclass(frozen=True)
class Race:
    """What came out of a race."""

    arms: Mapping[str, Arm]
    twins: tuple[str, ...]
    """Names of the arms that are the same plain run."""
    rounds: int
    steps_per_turn: int

    def ratio(self, name: str) -> Ratio:
        """Return how many times faster that arm is than the plain run, round by round."""
        return paired_ratio(self.base_ms, self.arms[name].turns_ms)

    def ratio_of_means(self, name: str) -> float:
        """Return the same by the means of all turns, in which a few long steps count too."""
        return ratio_of_means(self.twins_means_ms, self.arms[name].means_ms)

    def gains(self, name: str, floor: float) -> bool:
        """True if that arm is faster by more than `floor`, and its means do not say otherwise."""
        return is_gain(self.ratio(name), floor) and holds_by_means(
            self.twins_means_ms, self.arms[name].means_ms
        )

    def took_effect(self, name: str) -> bool:
        """True if every technique of that arm's plan was applied."""
        return all(row["state"] == "applied" for row in self.arms[name].techniques)

    @property
    def twins_means_ms(self) -> list[list[float]]:
        """Mean ms per step of the plain run, by twin and round."""
        return [self.arms[name].means_ms for name in self.twins]

    @property
    def base_ms(self) -> list[float]:
        """The plain run's ms per step, one a round: the median over its twins."""
        columns = [self.arms[name].turns_ms for name in self.twins]
        return [median(row) for row in zip(*columns, strict=True)]

    @property
    def floor(self) -> float:
        """How far identical runs may be apart here, as |ratio - 1|."""
        return noise_floor([self.arms[name].turns_ms for name in self.twins])

    def spread(self, name: str) -> Spread:
        return spread(self.arms[name].turns_ms)


def race(
    arms: Sequence[Arm],
    *,
    twins: Sequence[str],
    rounds: int,
    turn_s: float,
    deadline: float | None = None,
    planned_steps: int | None = None,
    step_ms: float | None = None,
    seed: int = 0,
    most_rounds: int | None = None,
    settled: Callable[[Race], bool] = lambda _: True,
    progress: Callable[[str], None] = lambda _: None,
) -> Race:
    """Let the arms train in turns, each round in an order of its own.

    The order is drawn at random: with a fixed one, a line that a script logs every 20 steps falls
    into the turns of the same arm again and again.

    Args:
        arms: what takes part; the twins among them are the baseline.
        twins: names of the arms that are the plain run; two or more give a noise floor.
        rounds: turns of each arm.
        turn_s: seconds that a turn of the slowest arm should take.
        deadline: stop after the round in which `time.monotonic()` passes this; None for never.
        planned_steps: steps of the whole run, if known: turns are made to fit.
        step_ms: what a plain step takes, if known.
        seed: of the order.
        most_rounds: go on up to so many, until the deadline, while the race is not `settled`.
        settled: True if more rounds of this race would tell nothing more.
        progress: called with a short text now and then.

    Raises:
        TrialError: the plain run itself cannot be measured. An arm of another plan that fails is
            left out and says why in `failed`.
    """
    check_length(arms[0].lab.subject, planned_steps)
    for arm in arms:
        arm.warm_up = warm_up_lengths(planned_steps, step_ms)
        arm.capacity = None if planned_steps is None else usable_steps(planned_steps)
    _start_all(arms, twins, deadline, progress)
    live = [arm for arm in arms if arm.failed is None]
    try:
        plain_ms = _warm_up(live, twins)
        steps = turn_length(turn_s, rounds, planned_steps, step_ms or plain_ms, arms[0].warm_up)
        most = rounds if most_rounds is None or deadline is None else max(rounds, most_rounds)
        if planned_steps is not None:
            # More rounds are worth waiting for, but not another start of every process.
            fits = (usable_steps(planned_steps) - sum(arms[0].warm_up)) // steps
            most = max(rounds, min(most, fits))
        done, orders = 0, random.Random(seed)
        while done < most and _take_round(live, twins, steps, plain_ms, done, orders):
            done += 1
            progress(f"round {done} of {rounds}" if done <= rounds else f"round {done}")
            if deadline is not None and done >= _LEAST_ROUNDS and time.monotonic() > deadline:
                break
            if done >= rounds and settled(_outcome(live, twins, done, steps)):
                break
    finally:
        for arm in arms:
            if arm.trial is not None:
                arm.trial.kill()
    for arm in live:
        # A round that not everybody finished pairs nothing.
        del arm.turns_ms[done:], arm.means_ms[done:]
    return _outcome(live, twins, done, steps)


def _outcome(live: Sequence[Arm], twins: Sequence[str], rounds: int, steps: int) -> Race:
    kept = {arm.name: arm for arm in live if arm.failed is None}
    return Race(kept, tuple(twins), rounds, steps)


def _take_round(
    live: Sequence[Arm],
    twins: Sequence[str],
    steps: int,
    plain_ms: float,
    number: int,
    orders: random.Random,
) -> bool:
    """Let every arm take a turn; False if the script came to its end, after enough rounds."""
    for arm in orders.sample(live, len(live)):
        if arm.failed is not None:
            continue
        must = arm.name in twins
        try:
            message = _take_turn(arm, steps, None if must else plain_ms)
        except HotlapError as error:
            ended = isinstance(error, TrialError) and error.reason == "ended_early"
            if ended and number >= _ENOUGH_ROUNDS:
                return False
            _fail(arm, error, must=must)
            continue
        arm.turns_ms.append(message["median_ms"])
        arm.means_ms.append(message["ms_per_step"])
    return True


def _start_all(
    arms: Sequence[Arm],
    twins: Sequence[str],
    deadline: float | None,
    progress: Callable[[str], None],
) -> None:
    """Bring every arm to its gate, as many at a time as there are cores.

    Up to the gate a process imports, reads and decodes, one thread each; nobody is timed. A plan
    that takes half of the time that is left is not waited for: one that compiles may take minutes.
    """
    starting: list[Arm] = []
    for arm in arms:
        starting.append(arm)
        try:
            arm.trial = arm.lab.start("race", arm.plan, fill_ahead=True)
        except HotlapError as error:
            _fail(arm, error, must=arm.name in twins)
        if len(starting) >= _usable_cores():
            _await_gate(starting.pop(0), twins, deadline, progress)
    for arm in starting:
        _await_gate(arm, twins, deadline, progress)


def _await_gate(
    arm: Arm, twins: Sequence[str], deadline: float | None, progress: Callable[[str], None]
) -> None:
    if arm.trial is None or arm.failed is not None:
        return
    wait_s = _READY_S
    if deadline is not None and arm.name not in twins and not arm.is_awaited:
        wait_s = min(_READY_S, max(_LEAST_READY_S, (deadline - time.monotonic()) / 2))
    try:
        arm.setup_s = arm.trial.message(["ready"], wait_s)["setup_s"]
        arm.trial.pause()
        progress(f"{arm.name}: ready after {arm.setup_s:.1f} s")
    except TrialError as error:
        if error.reason == "timeout" and wait_s < _READY_S:
            words = f"it was not ready after {wait_s:.0f} s: give a larger --budget"
            error = TrialError(words, reason="timeout")
            arm.is_late = True
        _fail(arm, error, must=arm.name in twins)
    except HotlapError as error:
        _fail(arm, error, must=arm.name in twins)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _fail(arm: Arm, error: HotlapError, *, must: bool) -> None:
    if must:
        raise error
    arm.failed = str(error).splitlines()[0]
    if arm.trial is not None:
        arm.trial.kill()


def _take_turn(arm: Arm, steps: int, plain_ms: float | None) -> dict[str, Any]:
    """Let an arm train for so many steps.

    Args:
        arm: has a trial at its gate.
        steps: of the turn.
        plain_ms: what a step of the plain run takes; None if the turn has to be waited for.
    """
    if arm.capacity is not None and arm.taken + steps > arm.capacity:
        _start_again(arm, plain_ms)
    trial = arm.trial
    assert trial is not None
    trial.resume()
    trial.send("turn", steps=steps, skip=skipped_steps(steps))
    try:
        message = trial.message(["turn"], _longest_wait(steps, plain_ms))
    except TrialError as error:
        if error.reason == "ended_early" and _has_room(arm, steps):
            # Nobody knew how many steps the script has: now it is known that it has these.
            arm.capacity = arm.taken
            return _take_turn(arm, steps, plain_ms)
        if error.reason != "timeout" or plain_ms is None:
            raise
        arm.is_slow = True
        raise TrialError(
            f"{steps} steps were not done after {_longest_wait(steps, plain_ms):.0f} s; the plain "
            f"run takes {plain_ms:.2f} ms a step",
            reason="timeout",
        ) from error
    trial.pause()
    arm.taken += steps
    arm.techniques = message["techniques"]
    return {**message, "ms_per_step": message["ms"] / message["steps"]}


def _has_room(arm: Arm, steps: int) -> bool:
    """True if another process of a script whose length was not known has a turn for sure."""
    return arm.capacity is None and arm.taken >= sum(arm.warm_up) + steps


def _start_again(arm: Arm, plain_ms: float | None) -> None:
    """Give an arm another process, warmed up: the script is too short for all turns in one."""
    assert arm.trial is not None
    arm.trial.kill()
    arm.taken = 0
    arm.trial = arm.lab.start("race", arm.plan, fill_ahead=True)
    arm.trial.message(["ready"], _READY_S)
    for steps in arm.warm_up:
        _take_turn(arm, steps, plain_ms)


def _longest_wait(steps: int, plain_ms: float | None) -> float:
    """Return the seconds after which a turn is given up."""
    if plain_ms is None:
        return max(30.0, steps * _SLOWEST_STEP_S)
    return _GIVEN_UP * steps * plain_ms / 1000 + _GIVEN_UP_S


def _warm_up(live: Sequence[Arm], twins: Sequence[str]) -> float:
    """Let every arm warm up, leave out what is far too slow to gain, and return the plain ms."""
    warm: dict[str, float] = {}
    arm_ms = 1.0
    # The plain run first: the others are not waited for as long.
    for arm in sorted(live, key=lambda arm: arm.name not in twins):
        is_plain = arm.name in twins
        known_ms = None if is_plain else max(warm[name] for name in twins)
        try:
            for number, steps in enumerate(arm.warm_up):
                # The first turn may compile.
                arm_ms = _take_turn(arm, steps, known_ms if number else None)["ms_per_step"]
        except TrialError as error:
            _fail(arm, error, must=arm.name in twins)
            continue
        warm[arm.name] = arm_ms
    plain_ms = max(warm[name] for name in twins)
    for arm in live:
        if arm.name in warm and arm.name not in twins and _is_hopeless(arm, warm, plain_ms):
            arm.is_slow = True
            words = f"{warm[arm.name]:.2f} ms a step, the plain run takes {plain_ms:.2f}"
            _fail(arm, TrialError(words, reason="ended_early"), must=False)
    return plain_ms


def _is_hopeless(arm: Arm, warm: dict[str, float], plain_ms: float) -> bool:
    """True if a plan is far slower than the plain run, and was so again when it was asked again."""
    for _ in range(_SECOND_CHANCES):
        if warm[arm.name] <= _HOPELESS * plain_ms:
            return False
        try:
            again = _take_turn(arm, arm.warm_up[-1], plain_ms)["ms_per_step"]
        except TrialError:
            return True
        warm[arm.name] = min(warm[arm.name], again)
    return warm[arm.name] > _HOPELESS * plain_ms
