"""Live races: techniques that can be switched are raced, and combined, in one live process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hotlap.errors import HotlapError
from hotlap.lab.duel import WORTH, Combination, Decision, Duel, seconds_to_decide
from hotlap.lab.observing import Observation
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.techniques import Numerics
from hotlap.trace.schema import Trace
from hotlap.tuning.candidates import Candidate, combine, excludes
from hotlap.tuning.result import TrialRow
from hotlap.tuning.tuner import Tuner

_SHARE = 0.3
"""Of the budget, for turns."""
_SECONDS = 30.0
"""That turns take at the most, beside the start of the process."""
_SHARE_ALONE = 0.55
"""Of that time, for each technique alone."""
_SHARE_COMBINED = 0.3
"""Of that time, for what is added to the fastest one."""
_FINAL_ROUNDS = 12
_FINAL_S = 3.0
"""Turns of the finalists against the plain script, whatever the rest has taken."""
_AGE_SHARE = 0.03
_AGE_STEPS = (20, 1000)
"""Steps before the first turn: the first ones of a run are not like the others."""
_READY_SHARE = 0.3
_HARMFUL = 0.9
"""What is slower than that alone is not tried in combination."""
_FEW = 10
"""Rounds below which an interval is only the range of what was seen."""
_OPEN = 1.05
"""An interval that reaches so far rules no gain out."""


@dataclass(frozen=True)
class LiveRaces:
    """What races in one process say."""

    finalists: Mapping[Plan, Ratio]
    """The plans to be confirmed in fresh processes, the fastest first; empty if nothing gained."""
    rest: Sequence[Candidate]
    """What can only be tried in a fresh process, or must be tried there again."""


def race_live(tuner: Tuner, seen: Observation, candidates: Sequence[Candidate]) -> LiveRaces | None:
    """Race the candidates that can be switched live; None where no such race takes place.

    First each alone; then, starting from the fastest, whatever makes it faster still is added, and
    what became useless is taken out; then the result against the plain script.

    Args:
        tuner: what the tuning shares; the trials and the notes are added to.
        seen: the watched plain run.
        candidates: all of them, the most promising first.
    """
    ready_s = max(30.0, _READY_SHARE * tuner.budget.left)
    live = [c for c in candidates if _is_live(tuner, c, seen.trace, ready_s)]
    seconds = min(_SECONDS, _SHARE * tuner.budget.seconds)
    if tuner.owns_step or not live:
        return None
    step_ms = seen.trace.step_ms()["median"]
    least, most = _AGE_STEPS
    age = int(_AGE_SHARE * tuner.budget.seconds * 1e3 / step_ms)
    age = max(least, min(most, seen.trace.facts.steps_per_epoch or most, age))
    settle = max(t.live.settle for c in live if (t := tuner.known[c.technique]).live)
    needed_s = seconds_to_decide(len(live), step_ms, settle)
    start_s = seen.trace.setup_s + age * step_ms / 1e3
    if needed_s > _SHARE_ALONE * seconds or tuner.budget.left < 2 * (start_s + seconds):
        return None
    tuner.progress(f"{len(live)} techniques in one process, switched between steps")
    try:
        with Duel(
            tuner.lab,
            [candidate.plan() for candidate in live],
            step_ms=step_ms,
            steps=seen.trace.facts.planned_steps,
            settle=settle,
            age=age,
            ready_s=ready_s,
        ) as duel:
            races = _Races(tuner, duel, live, seconds)
            return races.run(candidates)
    except HotlapError as error:
        tuner.progress(f"they could not be raced in one process: {str(error).splitlines()[0]}")
        return None


def _is_live(tuner: Tuner, candidate: Candidate, trace: Trace, ready_s: float) -> bool:
    """True if it can be switched in a live process that is ready in time."""
    technique = tuner.known[candidate.technique]
    reads_all = technique.memory.keeps_dataset
    return technique.live is not None and not (reads_all and _fill_s(trace) > ready_s / 2)


def _fill_s(trace: Trace) -> float:
    """Return about how many seconds it takes to read every sample of the training data."""
    data_ms = trace.phase_means().get("data", 0.0)
    loaders = [loader for loader in trace.facts.loaders if loader.training]
    batches = [(each.length or 0) / max(1, each.batch_size or 1) for each in loaders]
    return data_ms * max(batches, default=0.0) / 1e3


class _Races:
    """The races in one process.

    Args:
        tuner: what the tuning shares.
        duel: the process.
        live: the candidates, by the numbers that they have there.
        seconds: for all races together.
    """

    def __init__(self, tuner: Tuner, duel: Duel, live: Sequence[Candidate], seconds: float) -> None:
        self._tuner, self._duel, self._live, self._seconds = tuner, duel, live, seconds
        self._is_over = False
        self._spent_s = 0.0

    def run(self, candidates: Sequence[Candidate]) -> LiveRaces:
        alone = self._race_alone()
        rest = [c for c in candidates if c not in alone or _is_open(alone[c])]
        chosen = self._combine(alone)
        faster = [d for d in alone.values() if d.state == "faster"]
        if any(decision.on == chosen for decision in faster):
            finalists = self._plans([d for d in faster if d.on == chosen])
        else:
            finalists = self._against_plain(chosen) if chosen else {}
        fastest = _best(faster)
        return LiveRaces(finalists or self._plans([d for d in faster if d.on == fastest]), rest)

    def _plans(self, decisions: Sequence[Decision]) -> dict[Plan, Ratio]:
        """Return what is faster of them, with what it gains."""
        return {
            combine([self._live[number] for number in decision.on]): decision.ratio
            for decision in decisions
            if decision.state == "faster" and decision.ratio is not None
        }

    def _race_alone(self) -> dict[Candidate, Decision]:
        arms: list[Combination] = [(number,) for number in range(len(self._live))]
        race = self._duel.race(arms, seconds=_SHARE_ALONE * self._seconds)
        self._is_over, self._spent_s = race.is_over, race.seconds
        if race.placebo is not None:
            placebo = race.placebo.median
            self._tuner.floor = max(WORTH, placebo - 1, 1 / placebo - 1)
        found = {}
        for candidate, decision in zip(self._live, race.decisions, strict=True):
            found[candidate] = decision
            self._tuner.notes.note_live(candidate, decision)
            if decision.ratio is not None:
                row = TrialRow(candidate.plan(), 0, decision.ratio, None, decision.why)
                self._tuner.trials.append(row)
        return found

    def _combine(self, alone: Mapping[Candidate, Decision]) -> Combination:
        """Return the fastest combination, greedily; nothing if nothing gains alone."""
        chosen = _best(list(alone.values()))
        usable = [
            number
            for number, decision in enumerate(alone.values())
            if decision.ratio is not None
            and decision.state != "failed"
            and decision.ratio.high > _HARMFUL
        ]
        left_s = _SHARE_COMBINED * self._seconds
        while chosen and left_s > 0 and not self._is_over:
            arms = [tuple(sorted((*chosen, each))) for each in usable if self._fits(chosen, each)]
            if len(chosen) > 1:
                arms += [tuple(each for each in chosen if each != out) for out in chosen]
            if not arms:
                break
            race = self._duel.race(arms, base=chosen, seconds=left_s)
            self._is_over = race.is_over
            self._spent_s += race.seconds
            left_s -= race.seconds
            better = _best(race.decisions)
            if not better:
                break
            chosen = better
        return chosen

    def _fits(self, chosen: Combination, other: int) -> bool:
        candidate = self._live[other]
        others = [self._live[number] for number in chosen]
        same = any(each.technique == candidate.technique for each in others)
        return not same and not excludes(others, candidate)

    def _against_plain(self, chosen: Combination) -> dict[Plan, Ratio]:
        """Return the chosen combination, and what is exact of it, with what they gain."""
        exact = tuple(n for n in chosen if self._live[n].numerics is Numerics.EXACT)
        arms = [chosen, *([exact] if exact and exact != chosen else [])]
        if self._is_over:
            return {}
        seconds = max(_FINAL_S, self._seconds - self._spent_s)
        race = self._duel.race(arms, seconds=seconds, least_rounds=_FINAL_ROUNDS)
        found = self._plans(race.decisions)
        self._tuner.trials += [TrialRow(plan, 0, ratio, None) for plan, ratio in found.items()]
        return found


def _best(decisions: Sequence[Decision]) -> Combination:
    """Return what is fastest of what is faster, or looks so; nothing if nothing is.

    What only looks so may be the faster of two, one of which was decided sooner; nothing is claimed
    before it is decided against the plain script.
    """
    faster = [each for each in decisions if each.state == "faster" or _looks_faster(each)]
    best = max(faster, key=lambda each: each.ratio.median if each.ratio else 0.0, default=None)
    return best.on if best is not None else ()


def _looks_faster(decision: Decision) -> bool:
    ratio = decision.ratio
    return decision.state == "undecided" and ratio is not None and ratio.low > 1 + WORTH


def _is_open(decision: Decision) -> bool:
    """True if turns in one process say too little of it."""
    if decision.state != "undecided":
        return False
    ratio = decision.ratio
    return ratio is None or ratio.pairs < _FEW or ratio.high > _OPEN
