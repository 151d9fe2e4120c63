"""Duels: plans that are switched between the steps of one live process, raced in short turns.

Processes of one script differ for as long as they live, and so does the machine around them. Inside
one process neither counts: a turn of 60 ms under one plan is compared with the turn beside it under
none. Only times are taken from a duel; what it trains is a mixture.
"""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, log
from pathlib import Path

from hotlap.errors import TrialError
from hotlap.lab.decisions import Combination, Decision, State, decision_of, ratio_of
from hotlap.lab.late_steps import LATE_STEPS, LateSteps, draw_late_steps
from hotlap.lab.live_turns import LiveTurns, Turn
from hotlap.lab.statistics import Ratio
from hotlap.lab.trial import Lab, Trial
from hotlap.lab.whole_run import seconds_to_read
from hotlap.plan import Plan
from hotlap.techniques import Technique
from hotlap.trace.schema import Trace
from hotlap.trial.evidence import EVIDENCE, decide, differ, rounds_to_decide
from hotlap.trial.turns import settling_steps, steps_of_turn

_PLACEBO = None
_READY_S = 180.0


@dataclass(frozen=True)
class Race:
    """What a race of combinations in one process says."""

    decisions: tuple[Decision, ...]
    placebo: Ratio | None
    """The base against itself."""
    rounds: int
    seconds: float
    is_over: bool = False
    """True if the script has ended, or its process cannot be used any more."""

    def of(self, on: Combination) -> Decision:
        """Return what it says of that combination."""
        return next(each for each in self.decisions if each.on == on)


def can_race(technique: Technique, trace: Trace, ready_s: float) -> bool:
    """Return whether a technique can be switched in a live process that is ready in time.

    Args:
        technique: the one.
        trace: the plain run.
        ready_s: how long the process may take to get ready.
    """
    reads_all = technique.memory.keeps_dataset
    if reads_all and any(loader.num_workers for loader in trace.facts.training_loaders):
        # Workers are there, or not, for a whole epoch.
        return False
    return technique.live is not None and not (reads_all and seconds_to_read(trace) > ready_s / 2)


def seconds_to_decide(arms: int, step_ms: float, settle: int) -> float:
    """Return the least seconds in which so many arms can be decided, all rounds agreeing."""
    rounds = rounds_to_decide(EVIDENCE * arms)
    steps = steps_of_turn(step_ms) + settling_steps(step_ms, settle)
    return rounds * (arms + 2) * steps * step_ms / 1e3


class Duel:
    """A live process whose techniques are switched between its steps.

    A context manager: entering it starts the process and waits for its first turn.

    Args:
        lab: starts the process, if there is none yet.
        techniques: plans of one technique each, which can be switched live.
        step_ms: what a plain step takes.
        steps: that the script has, if known.
        settle: steps after a switch that do not count.
        age: steps before the first turn.
        taken: steps that a process that has stayed has taken before.
        ready_s: how long the first turn is waited for.
        seed: of the order of turns.
        trial: a process that was watched and has stayed; it is ended in the end.
        keeps: leave steps for `keep`.

    Raises:
        TrialError: the script did not come to its first turn.
    """

    def __init__(
        self,
        lab: Lab,
        techniques: Sequence[Plan],
        *,
        step_ms: float,
        steps: int | None = None,
        settle: int = 2,
        age: int = 20,
        taken: int = 0,
        ready_s: float = _READY_S,
        seed: int = 1,
        trial: Trial | None = None,
        keeps: bool = False,
    ) -> None:
        self._trial = trial
        self._lab, self._techniques, self._age, self._ready_s = lab, techniques, age, ready_s
        self._turns = LiveTurns(step_ms, settle, steps, taken + age, LATE_STEPS if keeps else 0)
        self._generator = random.Random(seed)
        self._taken: list[_Round] = []
        self._raced: set[Combination] = set()

    def __enter__(self) -> "Duel":
        plans = [plan.techniques for plan in self._techniques]
        trial = self._trial
        if trial is None:
            trial = self._lab.start("duel", plans=plans, age=self._age)
        else:
            trial.send("duel", plans=plans, age=self._age)
        self._turns.trial = trial
        try:
            self._turns.note_failures(trial.message(["ready"], self._ready_s))
        except BaseException:
            trial.kill()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        assert self._turns.trial is not None
        self._turns.trial.kill()

    @property
    def failed(self) -> Mapping[int, str]:
        """Number of a technique that cannot be switched here -> why."""
        return self._turns.failed

    @property
    def slowed(self) -> float:
        """How many times as long as undisturbed ones all steps took, on average."""
        return self._turns.slowed()

    @property
    def steps_per_turn(self) -> int:
        return self._turns.steps

    def race(
        self,
        arms: Sequence[Combination],
        *,
        base: Combination = (),
        seconds: float,
        least_rounds: int = 0,
        seconds_if_faster: float = inf,
    ) -> Race:
        """Take turns until every combination is decided, or the time is over.

        A base that differs from itself makes all of it void: it is raced again in turns of twice
        the length, and what still differs leaves everything undecided.

        Args:
            arms: to be compared with the base, in an order that is drawn again in each round.
            base: what they are compared with.
            seconds: how long turns are taken; looked at after each round.
            least_rounds: go on so long even if all are decided, for the intervals.
            seconds_if_faster: how long turns are taken at most once a combination is faster.
        """
        began = time.monotonic()
        until = began + seconds, began + seconds_if_faster
        found = self._race(arms, base, until, least_rounds)
        if found.is_void and not found.is_over and time.monotonic() < until[0]:
            self._turns.lengthen()
            again = self._race(arms, base, until, least_rounds)
            # Without another round, what is known is that the base differed.
            if again.rounds:
                found = again
            found.is_over = again.is_over
        if not found.is_void:
            self._taken += found.taken
        self._raced |= {base, *arms}
        return found.race(time.monotonic() - began)

    def keep(self, on: Combination, folder: Path) -> LateSteps:
        """Let some steps be taken with these techniques, and some of them be kept whole.

        Args:
            on: the techniques.
            folder: where the steps are kept.
        """
        trial, after = self._turns.trial, self._turns.taken
        assert trial is not None
        folder.mkdir(parents=True, exist_ok=True)
        samples = [after + step for step in draw_late_steps()]
        trial.send("keep", on=list(on), after=after, samples=samples, folder=str(folder))
        try:
            found = trial.message(["kept"], self._turns.longest_s(samples[-1] - after))
        except TrialError as error:
            return LateSteps(after, (), str(error).splitlines()[0])
        self._turns.taken += found["taken"]
        self._turns.note_failures(found)
        failed = [self.failed[number] for number in on if number in self.failed]
        if failed:
            return LateSteps(after, (), failed[0])
        return LateSteps(after, found["rows"], found["reason"])

    def against(self, on: Combination, base: Combination) -> Decision:
        """Return what all races so far say of one combination against another one.

        Their turns count together wherever both took one in the same round: the evidence may be
        looked at whenever one likes.
        """
        rounds = [each for each in self._taken if base in each.turns and on in each.turns]
        if not rounds:
            return Decision(on, "undecided")
        logs, means = zip(*(each.logs(base, on) for each in rounds), strict=True)
        placebos = [each.placebo_in(base, on) for each in rounds]
        state = decide(logs, EVIDENCE * max(1, len(self._raced)), placebos) or "undecided"
        return decision_of(on, state, logs, means, placebos, is_void=False)

    def _race(
        self,
        arms: Sequence[Combination],
        base: Combination,
        until: tuple[float, float],
        least_rounds: int,
    ) -> "_Found":
        found = _Found(arms, self.failed)
        while not found.is_over and (found.open or found.rounds < least_rounds):
            wanted = found.open if found.rounds >= least_rounds else found.running
            ends = min(until) if found.has_faster else until[0]
            if not self._turns.fits(len(wanted) + 2) or time.monotonic() > ends:
                break
            self._take_round(found, base, wanted)
        return found

    def _take_round(self, found: "_Found", base: Combination, arms: Sequence[Combination]) -> None:
        """Take a turn of the base, of its placebo and of each arm."""
        order: list[Combination | None] = [base, None, *arms]
        self._generator.shuffle(order)
        taken: dict[Combination | None, Turn] = {}
        for on in order:
            known = {*self.failed}
            turn = self._turns.take(base if on is None else on)
            if turn is None:
                is_its_fault = on != base and not self._turns.has_ended
                found.end(on if is_its_fault else None)
                return
            failed = {*self.failed} - known
            if failed:
                # What could not be switched off would be in all other turns as well.
                found.fail(self.failed, is_over=not failed <= {*(on or ())} - {*base})
                return
            taken[on] = turn
        found.add(base, taken)


@dataclass(frozen=True)
class _Round:
    """The turns of one round."""

    base: Combination
    turns: Mapping[Combination | None, Turn]
    """None is the placebo."""

    def placebo_in(self, base: Combination, on: Combination) -> float | None:
        """Return what `odds` takes for the placebo of `base`: that of `on` says as much."""
        if self.base not in (base, on):
            return None
        placebo, _ = self.logs(self.base, _PLACEBO)
        return placebo if self.base == base else -placebo

    def logs(self, base: Combination, on: Combination | None) -> tuple[float, float]:
        """Return the log of `base` over `on`, by medians and by means."""
        one, other = self.turns[base], self.turns[on]
        return log(one.median_ms / other.median_ms), log(one.mean_ms / other.mean_ms)


class _Found:
    """The differences of each combination so far."""

    def __init__(self, arms: Sequence[Combination], failed: Mapping[int, str]) -> None:
        self._arms = arms
        self._failed = {
            on: next(failed[number] for number in on if number in failed)
            for on in arms
            if not failed.keys().isdisjoint(on)
        }
        self.running = [on for on in arms if on not in self._failed]
        self.open = list(self.running)
        self.is_over = False
        self.taken: list[_Round] = []
        self._logs: dict[Combination | None, list[float]] = {}
        self._means: dict[Combination | None, list[float]] = {}
        self._states: dict[Combination, State] = {}
        self._hung: Combination | None = None

    @property
    def rounds(self) -> int:
        return len(self.taken)

    @property
    def has_faster(self) -> bool:
        """True if one of them is decided to be faster."""
        return "faster" in self._states.values()

    @property
    def is_void(self) -> bool:
        """True if the base differs from itself."""
        return differ(self._logs.get(_PLACEBO, []))

    def add(self, base: Combination, taken: Mapping[Combination | None, Turn]) -> None:
        """Add a round, and decide what it decides."""
        this = _Round(base, taken)
        self.taken.append(this)
        for on in taken:
            if on != base:
                by_median, by_mean = this.logs(base, on)
                self._logs.setdefault(on, []).append(by_median)
                self._means.setdefault(on, []).append(by_mean)
        wanted = EVIDENCE * max(1, len(self.running))
        for on in list(self.open):
            state = decide(self._logs[on], wanted, self._placebos(on))
            if state is not None:
                self._states[on] = state
                self.open.remove(on)

    def fail(self, failed: Mapping[int, str], *, is_over: bool) -> None:
        """Note techniques that could not be switched; the round in which that was does not count.

        Args:
            failed: number of each -> why.
            is_over: True if no turn can be believed any more.
        """
        for on in self._arms:
            why = [failed[number] for number in on if number in failed]
            if why and on not in self._failed:
                self._failed[on] = why[0]
                self.running.remove(on)
        self.open = [on for on in self.open if on in self.running]
        self.is_over = is_over

    def end(self, on: Combination | None) -> None:
        """Note that the process ended, or hung, in a turn of that combination."""
        self.is_over = True
        if on is not None:
            self._states[on] = "undecided"
            self._hung = on
        self.open.clear()

    def race(self, seconds: float) -> Race:
        """Return what is known."""
        placebo = self._logs.get(_PLACEBO)
        return Race(
            tuple(self._decision(on) for on in self._arms),
            ratio_of(placebo) if placebo else None,
            self.rounds,
            seconds,
            self.is_over,
        )

    def _decision(self, on: Combination) -> Decision:
        logs = self._logs.get(on)
        if on in self._failed:
            return Decision(on, "failed", ratio_of(logs) if logs else None, self._failed[on])
        why = "the script did not get through a turn of it" if on == self._hung else ""
        if not logs:
            return Decision(on, "undecided", None, why)
        state = self._states.get(on, "undecided")
        means, placebos = self._means[on], self._placebos(on)
        return decision_of(on, state, logs, means, placebos, is_void=self.is_void, why=why)

    def _placebos(self, on: Combination) -> list[float]:
        """Return the placebo's differences in the rounds of that one: what leaves never returns."""
        return self._logs[_PLACEBO][: len(self._logs[on])]
