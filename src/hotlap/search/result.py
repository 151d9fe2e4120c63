"""`SearchResult`: what a search found, and whether it is more than the noise of seeds. No torch."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import fmean, median
from typing import Any

from hotlap.search.decide import finalists, next_job, repeated
from hotlap.search.parameters import words_of
from hotlap.search.spec import Objective
from hotlap.search.state import SearchState, TrialState

_LEVEL = 0.05
"""Chance that two equal configurations are called different, each way."""
LEAST_SEEDS = 3
"""With fewer, equal configurations differ as much by chance too often: with two in 1 of 6 cases."""


@dataclass(frozen=True)
class Comparison:
    """The best configuration against the recipe's own, over the same seeds."""

    verdict: str
    """`better`, `same` or `worse`."""
    gain: float
    """Median of the differences between seeds of one and of the other; positive where the best one
    is better."""
    low: float
    high: float
    """Ends of its interval; the verdict is `same` if 0 lies in it."""
    seeds: int
    best: tuple[float | None, ...]
    """The objective with each seed, None where it failed."""
    own: tuple[float | None, ...]

    @classmethod
    def of(
        cls,
        best: Sequence[float | None],
        own: Sequence[float | None],
        objective: Objective | None = None,
    ) -> "Comparison":
        """Return the comparison, by the exact test of Mann and Whitney and the interval that
        belongs to it (Hodges and Lehmann).

        It asks only which seeds are better than which: few seeds do not show how the objective is
        distributed, and a rate that is too large fails with some seeds.

        Args:
            best: the objective of the best configuration, by seed; None where it failed, which is
                worse than any value.
            own: of the recipe's own, as many.
            objective: which way is better.
        """
        rank = (objective or Objective()).rank
        ours, theirs = (
            [math.inf if each is None else rank(each) for each in values] for values in (best, own)
        )
        # Two that failed are equal; their difference as numbers would be NaN.
        gains = sorted(0.0 if a == b else b - a for a in ours for b in theirs)
        needed = _wins_needed(len(best), len(own))
        low, high = gains[len(gains) - needed], gains[needed - 1]
        verdict = "better" if low > 0 else ("worse" if high < 0 else "same")
        # Between a gain and a loss without bound lies nothing.
        middle = 0.0 if math.isnan(gain := median(gains)) else gain
        return cls(verdict, middle, low, high, len(best), tuple(best), tuple(own))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data; a gain or an end without a bound is null."""
        ends = {name: getattr(self, name) for name in ("gain", "low", "high")}
        finite = {name: end if math.isfinite(end) else None for name, end in ends.items()}
        return {**vars(self), **finite, "best": list(self.best), "own": list(self.own)}


def _wins_needed(a: int, b: int) -> int:
    """Return how many of all pairs of two groups one must win to be called better."""

    @cache
    def count(wins: int, a: int, b: int) -> int:
        """Return in how many orders of both groups there are exactly so many wins."""
        if wins < 0:
            return 0
        if not a or not b:
            return int(wins == 0)
        # The last one of all is of the first group, and wins against all of the second; or not.
        return count(wins - b, a - 1, b) + count(wins, a, b - 1)

    orders, needed = 0, a * b + 1
    while (orders + count(needed - 1, a, b)) / math.comb(a + b, a) <= _LEVEL:
        needed -= 1
        orders += count(needed, a, b)
    return needed


def _on_axis(values: tuple[float, ...] | None, axis: int) -> float | None:
    return None if values is None else values[axis]


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    state: SearchState
    reserved: frozenset[str] = frozenset()
    """Options of `hotlap train` itself: parameters with their names are given behind `--`."""
    options: tuple[str, ...] = ()
    """Options that `hotlap train` must be given to train as the trials were."""

    @property
    def best(self) -> TrialState | None:
        """The best trial: by the mean over the other seeds where there are some.

        One that fails with another seed is behind those that do not.
        """
        known = finalists(self.state)
        found = [trial for trial in known if None not in self._repeats_of(trial).values()] or known
        rank = self.state.spec.objective.rank
        means = {trial.number: self.mean_of(trial) for trial in found}
        if found and all(each is not None for each in means.values()):
            return min(found, key=lambda trial: (rank(means[trial.number] or 0.0), trial.number))
        return found[0] if found else None

    def mean_of(self, trial: TrialState) -> float | None:
        """Return a trial's mean over the other seeds; None if it has none, or one failed."""
        values = self.values_of(trial)
        return fmean(values) if values and len(values) == self.state.spec.seeds else None

    def values_of(self, trial: TrialState) -> list[float]:
        """Return the first objective with each of the other seeds that gave one."""
        return [values[0] for values in self._repeats_of(trial).values() if values is not None]

    def _repeats_of(self, trial: TrialState) -> dict[int, tuple[float, ...] | None]:
        """Return the objectives with each of the other seeds, None of one that failed."""
        return {seed: self.state.values_of(each) for seed, each in sorted(trial.repeats.items())}

    @property
    def comparison(self) -> Comparison | None:
        """The best configuration against the recipe's own; None if these cannot be compared.

        Of equal finalists one has the better seeds: the better of two would be called `better`
        nearly twice as often as one. So the one that the search's own seed puts first must be
        better, too, which `_LEVEL` of equal ones are.
        """
        best = self.best
        found = None if best is None else self.compared(best)
        if found is None or found.verdict != "better":
            return found
        own = self.state.trials[0]
        first = next(trial for trial in finalists(self.state) if trial is not own)
        of_first = self.compared(first)
        if of_first is not None and of_first.verdict == "better":
            return found
        return replace(found, verdict="same", low=0.0)

    def compared(self, trial: TrialState, axis: int = 0) -> Comparison | None:
        """Return a configuration against the recipe's own, over the seeds that both have.

        Args:
            trial: the configuration.
            axis: number of the objective.

        Returns:
            None if they cannot be compared.
        """
        own = self.state.trials[0]
        if self.state.spec.defaults is None or trial is own:
            return None
        ours, theirs = self._repeats_of(trial), self._repeats_of(own)
        seeds = sorted(ours.keys() & theirs.keys())
        if len(seeds) < LEAST_SEEDS:
            return None
        return Comparison.of(
            [_on_axis(ours[seed], axis) for seed in seeds],
            [_on_axis(theirs[seed], axis) for seed in seeds],
            self.state.spec.objectives[axis],
        )

    @property
    def front(self) -> list[TrialState]:
        """Trials to the end of which none is better than another in all objectives, by the first
        one; empty with one objective, of which there is a best one."""
        spec, last = self.state.spec, len(self.state.spec.rungs) - 1
        found = self.state.front(last) if spec.more else []
        return sorted(found, key=lambda trial: (self.state.ranks_at(trial, last), trial.number))

    @property
    def full_steps(self) -> int:
        """Steps that the same trials would have taken without early stopping."""
        return sum(map(self._full_steps_of, self.state.trials))

    def _full_steps_of(self, trial: TrialState) -> int:
        spec, last = self.state.spec, trial.last
        if last is not None and last.is_over:
            return last.step
        own = None if last is None or not spec.is_own_length else last.whole_steps
        return spec.rungs[-1] if own is None else own

    @property
    def stopped_early(self) -> int:
        """Trials that have a value, could be the best, and were not trained to the end."""
        last, large = len(self.state.spec.rungs) - 1, self.too_large
        return sum(
            trial.last is not None and not trial.failed and last not in trial.outcomes
            for trial in self.state.trials
            if trial not in large
        )

    @property
    def too_large(self) -> list[TrialState]:
        """Trials that have a value, and held more memory than candidates may."""
        return [
            trial
            for trial in self.state.trials
            if trial.last is not None and not trial.failed and self.state.is_too_large(trial.last)
        ]

    @property
    def failures(self) -> dict[str, int]:
        """Why trials have no value -> how many."""
        found: dict[str, int] = {}
        for trial in self.state.trials:
            if trial.failed and trial.last is not None:
                found[trial.last.state] = found.get(trial.last.state, 0) + 1
        return found

    @property
    def repeat_steps(self) -> int:
        """Steps of the repetitions with other seeds."""
        return sum(each.step for trial in self.state.trials for each in trial.repeats.values())

    def command(self, trial: TrialState) -> str:
        """Return the command line that trains a configuration."""
        spec = self.state.spec
        given = [*spec.args, *words_of(trial.values)]
        is_taken = any(word.partition("=")[0] in self.reserved for word in given)
        before = ["hotlap", "train", spec.recipe, *self.options]
        return shlex.join([*before, *(["--"] if is_taken else []), *given])

    def to_json(self) -> dict[str, Any]:
        """Return what `hotlap search --json` prints."""
        best, comparison = self.best, self.comparison
        spec = self.state.spec
        return {
            "search": spec.to_json(),
            "trials": [self._trial_json(trial) for trial in self.state.trials],
            "is_over": not self.state.open and next_job(self.state) is None,
            "best": None if best is None else self._trial_json(best),
            "command": None if best is None else self.command(best),
            "repeated": [trial.number for trial in repeated(self.state)],
            "comparison": None if comparison is None else comparison.to_json(),
            "front": [self._front_json(trial) for trial in self.front],
            "steps": self.state.steps,
            "full_steps": self.full_steps,
            "repeat_steps": self.repeat_steps,
            "stopped_early": self.stopped_early,
            "failures": self.failures,
        }

    def objectives_of(self, trial: TrialState) -> dict[str, float]:
        """Return what a trial has last shown of each objective, by name; empty if it failed."""
        values = self.state.values_of(trial.last) or ()
        names = [each.name for each in self.state.spec.objectives]
        return dict(zip(names, values, strict=False))

    def _front_json(self, trial: TrialState) -> dict[str, Any]:
        compared = {
            each.name: None if found is None else found.to_json()
            for axis, each in enumerate(self.state.spec.objectives)
            for found in [self.compared(trial, axis)]
        }
        return {
            "number": trial.number,
            "values": self.objectives_of(trial),
            "command": self.command(trial),
            "comparisons": compared,
        }

    def _trial_json(self, trial: TrialState) -> dict[str, Any]:
        last = trial.last
        return {
            "number": trial.number,
            "parameters": dict(trial.values),
            "state": "open" if last is None else last.state,
            "step": trial.steps,
            "value": None if last is None else last.value,
            "values": self.objectives_of(trial),
            "is_too_large": last is not None and self.state.is_too_large(last),
            "measures": {} if last is None else dict(last.measures),
            "seconds": 0.0 if last is None else last.seconds,
            "memory_bytes": 0 if last is None else last.memory_bytes,
            "error": "" if last is None else last.error,
            "rungs": {str(self.state.spec.rungs[k]): o.value for k, o in trial.outcomes.items()},
            "seeds": self.values_of(trial),
        }
