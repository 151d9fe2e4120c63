"""Live races: techniques that can be switched are raced, and combined, in one live process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

from hotlap.errors import HotlapError
from hotlap.lab.decisions import PLAIN, Combination, Decision
from hotlap.lab.duel import Duel, can_race, seconds_to_decide
from hotlap.lab.late_steps import LateSteps
from hotlap.lab.observing import Observation
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.trial.evidence import WORTH
from hotlap.tuning.candidates import Candidate, combine, excludes
from hotlap.tuning.live_decisions import (
    FEW,
    all_that_look_faster,
    as_fast_without,
    find_best,
    is_clear,
    is_hope,
    is_open,
    variants,
)
from hotlap.tuning.result import TrialRow
from hotlap.tuning.time_plan import seconds_after_races
from hotlap.tuning.tuner import Tuner

_SHARE = 0.22
"""Of the budget, for turns."""
_SECONDS = 30.0
"""That turns take at the most, beside the start of the process."""
_SHARE_ALONE = 0.55
"""Of that time, for each technique alone; the rest is for what is added to the fastest one."""
_SHARE_ONCE_FASTER = 0.3
"""The same once one of them is faster: on top of that one, others are decided sooner."""
_SLOW_SHARE = 0.4
"""Of what is left of the budget, for each technique alone where steps are so slow that less would
decide nothing."""
_FEWEST_VARIANTS = 4
_LONGER = 1.5
"""How many times as long as planned all races together may take, where nothing is decided, or not
whether all that look faster are so together."""
_MOST_HOPES = 2
_ENOUGH_ROUNDS = 12
_FINAL_S = 3.0
"""Turns of the finalists against the plain script, again while that is not decided."""
_MOST_SHARE = 0.3
"""Of the budget, for turns where something looks faster and is not decided."""
_AGE = 5
"""Steps between what was watched and the first turn: what was prepared acts from a step on."""
_READY_SHARE = 0.3
_HARMFUL = 0.93
"""What is slower than that alone is not tried in combination."""


@dataclass(frozen=True)
class LiveRaces:
    """What races in one process say."""

    finalists: Mapping[Plan, Ratio]
    """The plans to be confirmed in fresh processes, the fastest first; empty if nothing gained."""
    rest: Sequence[Candidate]
    """What can only be tried in a fresh process, or must be tried there again."""
    alone: Mapping[Candidate, Decision] = field(default_factory=dict)
    """What each that was switched gave alone."""
    floor: float = WORTH
    """How far the plain script was from itself, or the least gain that is decided on."""
    late_steps: Mapping[Plan, LateSteps] = field(default_factory=dict)
    """Steps of finalists that act late, where fresh processes have no time to get so old."""
    slowed: float = 1.0
    """How many times as long as undisturbed ones steps took, as other processes had the cores."""
    early_gains: Mapping[Plan, float] = field(default_factory=dict)
    """How many times as fast these are before that: what fresh processes can show."""


def race_live(tuner: Tuner, seen: Observation, candidates: Sequence[Candidate]) -> LiveRaces | None:
    """Race the candidates that can be switched live; None where no such race takes place.

    First each alone; then, starting from the fastest, whatever makes it faster still is added, and
    what became useless is taken out; then the result against the plain script.

    Args:
        tuner: what the tuning shares; the trials and the notes are added to.
        seen: the watched plain run, whose process has stayed.
        candidates: all of them, the most promising first.
    """
    ready_s = max(30.0, _READY_SHARE * tuner.budget.left)
    live = [c for c in candidates if can_race(tuner.known[c.technique], seen.trace, ready_s)]
    known = tuner.kept.decisions
    new = [c for c in live if c.plan() not in known]
    if seen.trial is None or not live:
        return None
    # What an earlier tuning has decided comes last, for combinations only.
    live = [*new, *(c for c in live if c.plan() in known)]
    step_ms = seen.trace.step_ms()["median"]
    settle = max(t.live.settle for c in live if (t := tuner.known[c.technique]).live)
    planned, taken = seen.trace.facts.planned_steps, len(seen.trace.steps)
    left_s = inf if planned is None else (planned - taken) * step_ms / 1e3
    seconds = min(_SECONDS, _SHARE * tuner.budget.seconds)
    spare_s = max(seconds, tuner.budget.left - seconds_after_races(seen.trace))
    slow_s = min(_SLOW_SHARE * tuner.budget.left, spare_s)
    most_s = min(left_s, max(_SHARE_ALONE * seconds, slow_s))
    at_once = len(live)
    while at_once and seconds_to_decide(at_once, step_ms, settle) > most_s:
        at_once -= 1
    if not at_once or tuner.budget.left < 2 * seconds:
        return None
    needed_s = seconds_to_decide(at_once, step_ms, settle)
    alone_s = max(_SHARE_ALONE * seconds, needed_s)
    seconds = max(seconds, min(spare_s, alone_s / _SHARE_ALONE))
    plural = "s" * (len(live) != 1)
    tuner.progress(f"race 1: {len(live)} technique{plural} in one process, switched between steps")
    try:
        with Duel(
            tuner.lab,
            [candidate.plan() for candidate in live],
            step_ms=step_ms,
            steps=planned,
            settle=settle,
            age=_AGE,
            taken=taken,
            ready_s=ready_s,
            trial=seen.trial,
            keeps=tuner.is_late_live,
        ) as duel:
            races = _Races(tuner, duel, live, (at_once, needed_s), (seconds, spare_s), alone_s)
            return races.run(candidates)
    except HotlapError as error:
        tuner.progress(f"they could not be raced in one process: {str(error).splitlines()[0]}")
        return None


class _Races:
    """The races in one process.

    Args:
        tuner: what the tuning shares.
        duel: the process.
        live: the candidates, by the numbers that they have there.
        at_once: how many of them can be decided in `alone_s`, and the least that it takes.
        seconds: for all races together, and the most where nothing is decided by then.
        alone_s: for each technique alone.
    """

    def __init__(
        self,
        tuner: Tuner,
        duel: Duel,
        live: Sequence[Candidate],
        at_once: tuple[int, float],
        seconds: tuple[float, float],
        alone_s: float,
    ) -> None:
        self._tuner, self._duel, self._live = tuner, duel, live
        self._at_once, self._needed_s = at_once
        (self._seconds, self._spare_s), self._alone_s = seconds, alone_s
        self._most_s = min(_LONGER * self._seconds, self._spare_s)
        self._is_over = False
        self._spent_s = 0.0
        self._floor = WORTH
        self._faster: set[Combination] = set()
        """What was decided to be faster than the plain script, or than one of these."""
        self._known: dict[Candidate, Decision] = {}
        self._on: dict[Plan, Combination] = {}
        for number, candidate in enumerate(live):
            decision = tuner.kept.decisions.get(candidate.plan())
            if decision is not None:
                self._known[candidate] = replace(decision, on=(number,))

    def run(self, candidates: Sequence[Candidate]) -> LiveRaces:
        alone = self._race_longer(self._race_alone() | self._known)
        self._tuner.note_alone(alone)
        # Before more is raced, which may be interrupted.
        self._tuner.kept.keep_alone({c.plan(): d for c, d in alone.items()}, self._floor)
        # First what only a fresh process can tell: there, what varies is told no better.
        rest = [c for c in candidates if c not in alone]
        rest += [c for c, decision in alone.items() if is_open(decision)]
        chosen = self._combine(alone)
        self._note_on_top(chosen)
        faster = [d for d in alone.values() if d.state == "faster"]
        exact = self._exact_part(chosen, faster)
        if any(decision.on == chosen for decision in faster):
            finalists = self._plans([d for on in (chosen, exact) for d in faster if d.on == on])
        else:
            finalists = self._against_plain(chosen, exact) if chosen else {}
        finalists = finalists or self._fastest(faster)
        self._tuner.floor = self._floor
        late_steps: dict[Plan, LateSteps] = {}
        early: dict[Plan, float] = {}
        if self._tuner.is_late_live:
            late_steps = self._keep_late(finalists)
            early = {plan: self._early_gain(plan, alone) for plan in late_steps}
            at_once = [d for d in faster if not self._tuner.acts_late(self._plan(d.on))]
            finalists = finalists or self._fastest(at_once)
        return LiveRaces(
            finalists,
            rest,
            alone,
            self._floor,
            late_steps,
            slowed=self._duel.slowed,
            early_gains=early,
        )

    def _fastest(self, faster: Sequence[Decision]) -> dict[Plan, Ratio]:
        fastest = find_best(faster)
        return self._plans([decision for decision in faster if decision.on == fastest])

    def _keep_late(self, finalists: dict[Plan, Ratio]) -> dict[Plan, LateSteps]:
        """Keep steps of the finalists that act late; one of which none are kept is none."""
        found = {}
        for number, plan in enumerate(list(filter(self._tuner.acts_late, finalists))):
            problem = "its process cannot be used any more"
            if not self._is_over:
                folder = self._tuner.lab.exchange / f"late-{number}"
                kept = self._duel.keep(self._on[plan], folder)
                if kept.are_whole:
                    found[plan] = kept
                    continue
                problem = kept.problem
            del finalists[plan]
            why = f"its steps in the watched process could not be kept: {problem}"
            self._tuner.notes.note_untried([self._live[n] for n in self._late_of(plan)], why)
        return found

    def _late_of(self, plan: Plan) -> Combination:
        known = self._tuner.known
        return tuple(n for n in self._on[plan] if known[self._live[n].technique].acts_late)

    def _early_gain(self, plan: Plan, alone: Mapping[Candidate, Decision]) -> float:
        """Return about what a plan gains before what acts late does."""
        late = self._late_of(plan)
        others = tuple(number for number in self._on[plan] if number not in late)
        if not others:
            return 1.0
        ratio = self._duel.against(others, PLAIN).ratio
        if ratio is not None:
            return ratio.median
        # Never raced by themselves: what is left of the gain without that of the late ones.
        gain = self._duel.against(self._on[plan], PLAIN).ratio
        of_late = (alone[self._live[n]].ratio for n in late if self._live[n] in alone)
        parts = prod(each.median for each in of_late if each is not None)
        return 1.0 if gain is None else max(1.0, gain.median / parts)

    def _plans(self, decisions: Sequence[Decision]) -> dict[Plan, Ratio]:
        """Return what is faster of them, with what it gains."""
        return {
            self._plan(decision.on): decision.ratio
            for decision in decisions
            if decision.state == "faster" and decision.ratio is not None
        }

    def _plan(self, on: Combination) -> Plan:
        plan = combine([self._live[number] for number in on])
        self._on[plan] = on
        return plan

    def _race_alone(self) -> dict[Candidate, Decision]:
        """Race each alone, as many at once as can be decided; the last ones may not be reached."""
        new = len(self._live) - len(self._known)
        numbers: list[Combination] = [(number,) for number in range(new)]
        found: dict[Candidate, Decision] = {}
        while numbers and not self._is_over:
            left_s = self._alone_s - self._spent_s
            if found and left_s < self._needed_s:
                break
            arms, numbers = numbers[: self._at_once], numbers[self._at_once :]
            once_faster_s = _SHARE_ONCE_FASTER * self._seconds - self._spent_s
            race = self._duel.race(arms, seconds=left_s, seconds_if_faster=once_faster_s)
            self._is_over = race.is_over
            self._spent_s += race.seconds
            if race.placebo is not None:
                placebo = race.placebo.median
                self._floor = max(self._floor, placebo - 1, 1 / placebo - 1)
            found |= {self._live[decision.on[0]]: decision for decision in race.decisions}
        return found

    def _race_longer(self, alone: dict[Candidate, Decision]) -> dict[Candidate, Decision]:
        """Give more turns to what may be faster, while nothing surely looks so: steps may vary."""
        most_s = self._most_s
        while self._spent_s < most_s and not self._is_over:
            hopes = [each for each in alone.items() if is_hope(each[1])]
            if not hopes or find_best(list(alone.values())):
                break
            hopes = sorted(hopes, key=lambda each: -each[1].odds)[:_MOST_HOPES]
            arms = [decision.on for _, decision in hopes]
            seconds = min(_FINAL_S, most_s - self._spent_s)
            race = self._duel.race(arms, seconds=seconds, least_rounds=_ENOUGH_ROUNDS)
            self._is_over = race.is_over
            self._spent_s += race.seconds
            if not race.rounds:
                break
            alone = alone | {one: self._duel.against(on.on, PLAIN) for one, on in hopes}
        return alone

    def _combine(self, alone: Mapping[Candidate, Decision]) -> Combination:
        """Return the fastest combination, greedily; nothing if nothing gains alone.

        All that look faster alone are tried together first, which is sooner than one by one.
        """
        chosen = find_best(list(alone.values()))
        together = all_that_look_faster(chosen, list(alone.values()), self._excludes)
        decided = {decision.on for decision in alone.values() if decision.state == "faster"}
        unsure = {number for number in together if (number,) not in decided}
        self._note_faster(list(alone.values()), PLAIN)
        usable = [
            decision.on[0]
            for decision in alone.values()
            if decision.ratio is not None
            and decision.state != "failed"
            and decision.ratio.median > _HARMFUL
        ]
        # For the last ones there was no time alone.
        usable += [n for n, candidate in enumerate(self._live) if candidate not in alone]
        while chosen and not self._is_over:
            is_first, arms = bool(together), [together]
            left_s = (self._most_s if is_first else self._seconds) - self._spent_s
            if left_s <= 0:
                break
            if not together:
                arms = variants(chosen, usable, self._excludes)
                arms = arms[: max(_FEWEST_VARIANTS, self._at_once)]
            together = ()
            if not arms:
                break
            # The plain script takes turns, too: what is chosen must be faster than that.
            race = self._duel.race(
                [*arms, PLAIN],
                base=chosen,
                seconds=left_s,
                least_rounds=_ENOUGH_ROUNDS,
                seconds_if_faster=_FINAL_S,
            )
            self._is_over = race.is_over
            self._spent_s += race.seconds
            better = find_best(race.decisions) or as_fast_without(unsure, race.decisions, chosen)
            if not better and is_first:
                unsure = set()
                continue
            if not better:
                break
            self._note_faster(race.decisions, chosen)
            chosen = better
        return chosen

    def _note_faster(self, decisions: Sequence[Decision], base: Combination) -> None:
        if base == PLAIN or base in self._faster:
            self._faster |= {each.on for each in decisions if each.state == "faster"}

    def _note_on_top(self, chosen: Combination) -> None:
        """Note what each of a combination gives in addition to the others, where that is known."""
        for number in chosen:
            rest = tuple(each for each in chosen if each != number)
            known = self._duel.against(chosen, rest).ratio if rest else None
            if known is not None and known.pairs >= FEW:
                self._tuner.notes.note_on_top(self._live[number], self._plan(chosen), known)

    def _excludes(self, number: int, other: int) -> bool:
        one, another = self._live[number], self._live[other]
        return one.technique == another.technique or excludes([one], another)

    def _exact_part(self, chosen: Combination, faster: Sequence[Decision]) -> Combination:
        """Return what is exact of the fastest combination, or else is faster alone; () if all is.

        Of a script whose steps cannot be repeated it is all that can be proven.
        """
        is_exact = [each.numerics is Numerics.EXACT for each in self._live]
        exact = tuple(number for number in chosen if is_exact[number])
        exact = exact or find_best([each for each in faster if is_exact[each.on[0]]])
        return () if exact == chosen else exact

    def _against_plain(self, chosen: Combination, exact: Combination) -> dict[Plan, Ratio]:
        """Return both combinations, if they are faster, with what they gain."""
        arms = [chosen, *([exact] if exact else [])]
        known = [self._duel.against(on, PLAIN) for on in arms]
        most_s = min(_MOST_SHARE / _SHARE * self._seconds, self._spare_s)
        while not is_clear(known[0]) and self._spent_s < most_s and not self._is_over:
            race = self._duel.race(arms, seconds=_FINAL_S, least_rounds=_ENOUGH_ROUNDS)
            self._spent_s += race.seconds
            # A script has only so many steps.
            self._is_over = race.is_over or not race.rounds
            known = [self._duel.against(on, PLAIN) for on in arms]
        # The plain script leaves a race as soon as it has lost: too soon, at times, to be told from
        # each of the others by itself.
        known = [
            replace(each, state="faster")
            if each.state == "undecided" and not each.why and each.on in self._faster
            else each
            for each in known
        ]
        found = self._plans(known)
        means = {self._plan(each.on): each.by_means for each in known}
        self._tuner.trials += [
            TrialRow(plan, 0, ratio, None, by_means=means[plan]) for plan, ratio in found.items()
        ]
        return found
