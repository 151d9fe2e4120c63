"""Duels: plans that are switched between the steps of one live process, raced in short turns.

Processes of one script differ for as long as they live, and so does the machine around them. Inside
one process neither counts: a turn of 60 ms under one plan is compared with the turn beside it under
none. Only times are taken from a duel; what it trains is a mixture.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, exp, log
from statistics import median
from typing import Literal

from hotlap.errors import TrialError
from hotlap.lab.statistics import Ratio
from hotlap.lab.trial import Lab, Trial
from hotlap.plan import Plan

WORTH = 0.01
"""The least gain that is decided on."""
EVIDENCE = 100.0
"""How many times likelier the turns must be under a gain than under none, times the number of
plans: the chance of any false decision is at most its inverse, however often one looks."""
_INTERVAL = 200.0
_PLACEBO = "placebo"
_TURN_MS = 60.0
_STEPS = (6, 40)
_READY_S = 180.0
_SLOW = 20.0
_SLOW_S = 5.0
State = Literal["faster", "not_faster", "undecided", "failed"]


@dataclass(frozen=True)
class Decision:
    """What a duel says of one plan."""

    plan: Plan
    state: State
    ratio: Ratio | None = None
    """Plain over plan by the medians of turns, None if it took no turn."""
    why: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class Duel:
    """What a duel says of its plans."""

    decisions: tuple[Decision, ...]
    placebo: Ratio | None
    """The plain script against itself."""
    rounds: int
    seconds: float


def evidence(count: int, positive: int) -> float:
    """Return how many times likelier that many positive differences are under a gain.

    Under no gain each of `count` differences is positive with a chance of one half at most; under a
    gain with one that is unknown, above one half (uniform). The result is the ratio of the two, a
    test martingale: it exceeds X with a chance of at most 1 / X, whenever one looks.
    """
    if count == 0:
        return 1.0
    total = sum(comb(count + 1, j) for j in range(positive + 1))
    return total / ((count + 1) * comb(count, positive))


def ratio_of(differences: Sequence[float]) -> Ratio:
    """Return the Hodges-Lehmann estimate of exp(difference), and an interval around it.

    From ten rounds on the interval may be looked at after every round: it is wrong with a chance of
    at most 1 in 100. With fewer it is the range of what was seen.

    Args:
        differences: log of plain over plan, one a round.
    """
    means = [(a + b) / 2 for a, b in combinations_with_replacement(differences, 2)]
    ordered, count = sorted(differences), len(differences)
    # The k-th smallest and the k-th largest, for the least k that there is evidence against.
    inside = next(
        (k for k in range(count, count // 2, -1) if evidence(count, k) < _INTERVAL), count // 2
    )
    at = max(0, count - inside - 1)
    low, high = ordered[at], ordered[count - 1 - at]
    return Ratio(exp(median(means)), exp(low), exp(high), count)


def duel(
    lab: Lab,
    plans: Sequence[Plan],
    *,
    step_ms: float,
    seconds: float,
    steps: int | None = None,
    settle: int = 2,
    age: int = 20,
    seed: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> Duel:
    """Race plans in one process, in an order that is drawn again in each round.

    Args:
        lab: starts the process.
        plans: of techniques that can be switched live.
        step_ms: what a plain step takes.
        seconds: how long turns are taken, counted from the first; looked at after each round.
        steps: that the script has, if known.
        settle: steps after a switch that do not count.
        age: steps before the first turn.
        seed: of the order.
        progress: called with a short text.

    Raises:
        TrialError: the script did not come to its first turn.
    """
    began = time.monotonic()
    trial = lab.start("duel", plans=[dict(plan.techniques) for plan in plans], age=age)
    try:
        failed = trial.message(["ready"], _READY_S)["failed"]
        turns = _Turns(trial, step_ms, settle, None if steps is None else steps - age)
        found = _Found(plans, {int(number): why for number, why in failed.items()})
        progress(f"{len(plans)} plans in one process, switched every {turns.steps} steps")
        generator, rounds = random.Random(seed), 0
        deadline = time.monotonic() + seconds
        while found.open and turns.fits(len(found.open) + 2) and time.monotonic() < deadline:
            if not _round(turns, found, generator):
                break
            rounds += 1
    finally:
        trial.kill()
    return Duel(found.decisions(), found.placebo(), rounds, time.monotonic() - began)


class _Turns:
    """The turns of one process.

    Args:
        trial: at its gate.
        step_ms: what a plain step takes.
        settle: steps after a switch that do not count.
        left: steps that the script has left, None if that is not known.
    """

    def __init__(self, trial: Trial, step_ms: float, settle: int, left: int | None) -> None:
        self._trial, self._step_ms, self._settle, self._left = trial, step_ms, settle, left
        least, most = _STEPS
        self.steps = min(most, max(least, round(_TURN_MS / step_ms)))

    def fits(self, turns: int) -> bool:
        """True if the script has steps for so many turns."""
        return self._left is None or self._left > turns * (self.steps + self._settle)

    def take(self, plan: int | None) -> float | None:
        """Return the median ms of a step under a plan, None if the script has ended."""
        count = self.steps + self._settle
        self._trial.send("turn", steps=count, skip=self._settle, plan=plan)
        wait_s = _SLOW_S + _SLOW * count * self._step_ms / 1e3
        try:
            message = self._trial.message(["turn"], wait_s)
        except TrialError as error:
            if error.reason in ("ended_early", "timeout", "crashed"):
                return None
            raise
        if self._left is not None:
            self._left -= count
        return message["median_ms"]


class _Found:
    """The differences of each plan so far."""

    def __init__(self, plans: Sequence[Plan], failed: Mapping[int, str]) -> None:
        self._plans, self._failed = plans, dict(failed)
        self.open = [number for number in range(len(plans)) if number not in failed]
        self._logs: dict[int | str, list[float]] = {}
        self._states: dict[int, State] = {}

    def add(self, base_ms: float, others: Mapping[int | str, float]) -> None:
        """Add a round, and decide what it decides."""
        for name, ms in others.items():
            self._logs.setdefault(name, []).append(log(base_ms / ms))
        wanted = EVIDENCE * max(1, len(self._plans) - len(self._failed))
        for number in list(self.open):
            logs = self._logs[number]
            above = sum(each > log(1 + WORTH) for each in logs)
            for state, count in (("faster", above), ("not_faster", len(logs) - above)):
                if evidence(len(logs), count) >= wanted:
                    self._states[number] = state  # pyright: ignore[reportArgumentType]
                    self.open.remove(number)

    def fail(self, name: int | str | None, why: str) -> None:
        """Note that the process ended, or hung, in a turn of that plan."""
        if isinstance(name, int):
            self._failed[name] = why
            self.open.remove(name)

    def decisions(self) -> tuple[Decision, ...]:
        """Return what is known of each plan."""
        found = []
        for number, plan in enumerate(self._plans):
            logs = self._logs.get(number)
            ratio = ratio_of(logs) if logs else None
            if number in self._failed:
                found.append(Decision(plan, "failed", ratio, self._failed[number]))
            else:
                found.append(Decision(plan, self._states.get(number, "undecided"), ratio))
        return tuple(found)

    def placebo(self) -> Ratio | None:
        logs = self._logs.get(_PLACEBO)
        return ratio_of(logs) if logs else None


def _round(turns: _Turns, found: _Found, generator: random.Random) -> bool:
    """Take a turn of the plain script, of its placebo and of each open plan; False at the end."""
    order: list[int | str | None] = [None, _PLACEBO, *found.open]
    generator.shuffle(order)
    taken: dict[int | str, float] = {}
    base_ms = None
    for name in order:
        ms = turns.take(name if isinstance(name, int) else None)
        if ms is None:
            found.fail(name, "the script ended, or hung, in its turn")
            return False
        if name is None:
            base_ms = ms
        else:
            taken[name] = ms
    assert base_ms is not None
    found.add(base_ms, taken)
    return True
