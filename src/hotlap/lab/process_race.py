"""`race`: live processes take turns, round by round; `Race`: paired ratios and noise floor."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hotlap.errors import HotlapError, TrialError
from hotlap.lab.arm import Arm, at_the_gate, leave_out, start_all, take_turn
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
from hotlap.lab.turn_lengths import (
    check_length,
    is_whole,
    turn_length,
    usable_steps,
    warm_up_lengths,
)

_SECOND_CHANCES = 2
_HOPELESS = 4.0
"""How many times slower than the plain run a plan may be in its warm-up to take part at all."""
_ENOUGH_ROUNDS = 6
_LEAST_ROUNDS = 2


@dataclass(frozen=True)
class Race:
    """What came out of a race."""

    arms: Mapping[str, Arm]
    twins: tuple[str, ...]
    """Names of the arms that are the same plain run."""
    rounds: int
    steps_per_turn: int
    takes_epochs: bool = False
    """True if what counts of each turn are whole epochs: it is the mean of their steps then."""
    ended_after: int | None = None
    """Steps after which the plain script was seen to end, None if no process came so far."""

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
    age: int = 0,
    epoch: int | None = None,
    at_once: int | None = None,
    one_by_one: bool = False,
    seed: int = 0,
    most_rounds: int | None = None,
    settled: Callable[[Race], bool] = lambda _: True,
    progress: Callable[[str], None] = lambda _: None,
) -> Race:
    """Let the arms train in turns, each round in an order of its own.

    The order is drawn at random: with a fixed one, a line that a script logs every 20 steps falls
    into the turns of the same arm again and again.

    A script that ends before its loops say, as by early stopping, is raced again in turns that fit
    into the steps that it was seen to have.

    Args:
        arms: what takes part; the twins among them are the baseline.
        twins: names of the arms that are the plain run; two or more give a noise floor.
        rounds: turns of each arm.
        turn_s: seconds that a turn of the slowest arm should take.
        deadline: stop after the round in which `time.monotonic()` passes this; None for never.
        planned_steps: steps of the whole run, if known: turns are made to fit.
        step_ms: what a plain step takes, if known.
        age: steps that each process takes before its first turn that counts.
        epoch: steps of an epoch, if turns shall take whole ones where they are long enough, see
            `short_epoch`.
        at_once: processes that fit into the memory of a device at once; None if that is not
            limited. Of more arms than that each gets a fresh process for every turn, so that no two
            are there at once.
        one_by_one: start no process before the one before it is ready.
        seed: of the order.
        most_rounds: go on up to so many, until the deadline, while the race is not `settled`.
        settled: True if more rounds of this race would tell nothing more.
        progress: called with a short text now and then.

    Raises:
        TrialError: the plain run itself cannot be measured. An arm of another plan that fails is
            left out and says why in `failed`.
    """
    racing = _Racing(
        arms,
        twins,
        rounds,
        turn_s,
        deadline=deadline,
        step_ms=step_ms,
        age=age,
        epoch=epoch,
        seed=seed,
        most_rounds=most_rounds,
        settled=settled,
        progress=progress,
    )
    while True:
        check_length(arms[0].lab.subject, planned_steps)
        try:
            racing.start(planned_steps, at_once=at_once, one_by_one=one_by_one)
            return racing.run(planned_steps)
        except TrialError as error:
            ended = racing.ended_after
            if error.reason != "ended_early" or ended is None:
                raise
            if planned_steps is not None and ended >= planned_steps:
                raise
            progress(f"the script has ended after {ended} steps: racing in turns that fit in these")
            planned_steps = ended
            for arm in arms:
                arm.forget_turns()


@dataclass
class _Racing:
    """A race that takes place, see `race`."""

    arms: Sequence[Arm]
    twins: Sequence[str]
    rounds: int
    turn_s: float
    deadline: float | None
    step_ms: float | None
    age: int
    epoch: int | None
    seed: int
    most_rounds: int | None
    settled: Callable[[Race], bool]
    progress: Callable[[str], None]

    @property
    def ended_after(self) -> int | None:
        """Steps after which the plain script was seen to end, the fewest; None if it never was."""
        ends = [arm.ended_after for arm in self.arms if arm.name in self.twins]
        return min((end for end in ends if end is not None), default=None)

    def start(self, planned_steps: int | None, *, at_once: int | None, one_by_one: bool) -> None:
        """Bring every arm to its gate, or note that each turn has a process of its own."""
        arms, progress = self.arms, self.progress
        for arm in arms:
            arm.warm_up = warm_up_lengths(planned_steps, self.step_ms, self.age)
            arm.capacity = None if planned_steps is None else usable_steps(planned_steps)
        if at_once is not None and at_once < len(arms):
            progress(
                f"the GPU holds {at_once} of {len(arms)} processes at once: each turn starts its "
                "own"
            )
            for arm in arms:
                arm.is_alone = True
            return
        on_device = at_once is not None
        start_all(
            arms,
            self.twins,
            self.deadline,
            progress,
            at_a_time=1 if one_by_one or on_device else None,
            plain_first=on_device,
        )

    def run(self, planned_steps: int | None) -> Race:
        """Let the arms warm up and take their turns; end their processes."""
        live = [arm for arm in self.arms if arm.failed is None]
        try:
            plain_ms = _warm_up(live, self.twins)
            done, steps = self._take_rounds(live, planned_steps, plain_ms)
        finally:
            for arm in self.arms:
                if arm.trial is not None:
                    arm.trial.kill()
        for arm in live:
            # A round that not everybody finished pairs nothing.
            del arm.turns_ms[done:], arm.means_ms[done:]
        return self._outcome(live, done, steps)

    def _take_rounds(
        self, live: Sequence[Arm], planned_steps: int | None, plain_ms: float
    ) -> tuple[int, int]:
        """Return how many rounds were taken, and the steps of a turn."""
        rounds, warm_up = self.rounds, self.arms[0].warm_up
        step_ms = self.step_ms or plain_ms
        steps = turn_length(self.turn_s, rounds, planned_steps, step_ms, warm_up, self.epoch)
        figure = "ms_per_step" if is_whole(steps, self.epoch) else "median_ms"
        has_most = self.most_rounds is not None and self.deadline is not None
        most = max(rounds, self.most_rounds or 0) if has_most else rounds
        if planned_steps is not None:
            # More rounds are worth waiting for, but not another start of every process.
            fits = (usable_steps(planned_steps) - sum(warm_up)) // steps
            most = max(rounds, min(most, fits))
        done, orders = 0, random.Random(self.seed)
        while done < most and _take_round(live, self.twins, steps, plain_ms, done, orders, figure):
            done += 1
            self.progress(
                f"round {done} of {rounds}" if done <= rounds else f"round {done} of at most {most}"
            )
            is_over = self.deadline is not None and time.monotonic() > self.deadline
            if done >= _LEAST_ROUNDS and is_over:
                break
            if done >= rounds and self.settled(self._outcome(live, done, steps)):
                break
        return done, steps

    def _outcome(self, live: Sequence[Arm], rounds: int, steps: int) -> Race:
        kept = {arm.name: arm for arm in live if arm.failed is None}
        is_whole_epochs = is_whole(steps, self.epoch)
        return Race(kept, tuple(self.twins), rounds, steps, is_whole_epochs, self.ended_after)


def _take_round(
    live: Sequence[Arm],
    twins: Sequence[str],
    steps: int,
    plain_ms: float,
    number: int,
    orders: random.Random,
    figure: str,
) -> bool:
    """Let every arm take a turn; False if the script came to its end, after enough rounds."""
    for arm in orders.sample(live, len(live)):
        if arm.failed is not None:
            continue
        must = arm.name in twins
        try:
            with at_the_gate(arm, plain_ms, warms_up=True):
                message = take_turn(arm, steps, None if must else plain_ms)
        except HotlapError as error:
            ended = isinstance(error, TrialError) and error.reason == "ended_early"
            if ended and number >= _ENOUGH_ROUNDS:
                return False
            leave_out(arm, error, must=must)
            continue
        arm.turns_ms.append(message[figure])
        arm.means_ms.append(message["ms_per_step"])
    return True


def _warm_up(live: Sequence[Arm], twins: Sequence[str]) -> float:
    """Let every arm warm up, leave out what is far too slow to gain, and return the plain ms."""
    warm: dict[str, float] = {}
    arm_ms = 1.0
    # The plain run first: the others are not waited for as long.
    for arm in sorted(live, key=lambda arm: arm.name not in twins):
        is_plain = arm.name in twins
        known_ms = None if is_plain else max(warm[name] for name in twins)
        try:
            with at_the_gate(arm, None):
                for number, steps in enumerate(arm.warm_up):
                    # The first turn may compile.
                    turn = take_turn(arm, steps, known_ms if number else None)
                    arm_ms = turn["ms_per_step"]
                    arm.warm_up_s += turn["whole_ms"] / 1e3
        except HotlapError as error:
            leave_out(arm, error, must=arm.name in twins)
            continue
        warm[arm.name] = arm_ms
    plain_ms = max(warm[name] for name in twins)
    for arm in live:
        if arm.name in warm and arm.name not in twins and _is_hopeless(arm, warm, plain_ms):
            arm.is_slow = True
            words = f"{warm[arm.name]:.2f} ms a step, the plain run takes {plain_ms:.2f}"
            leave_out(arm, TrialError(words, reason="ended_early"), must=False)
    return plain_ms


def _is_hopeless(arm: Arm, warm: dict[str, float], plain_ms: float) -> bool:
    """True if a plan is far slower than the plain run, and was so again when it was asked again."""
    for _ in range(_SECOND_CHANCES):
        if warm[arm.name] <= _HOPELESS * plain_ms:
            return False
        try:
            with at_the_gate(arm, plain_ms, warms_up=True):
                again = take_turn(arm, arm.warm_up[-1], plain_ms)["ms_per_step"]
        except TrialError:
            return True
        warm[arm.name] = min(warm[arm.name], again)
    return warm[arm.name] > _HOPELESS * plain_ms
