"""`SearchResult`: what a search found, and whether it is more than the noise of seeds. No torch."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median
from typing import Any

from hotlap.search.decide import finalists, repeated
from hotlap.search.parameters import words_of
from hotlap.search.spec import Objective
from hotlap.search.state import DONE, SearchState, TrialState

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
    best: tuple[float, ...]
    """The objective with each seed."""
    own: tuple[float, ...]

    @classmethod
    def of(
        cls, best: Sequence[float], own: Sequence[float], objective: Objective | None = None
    ) -> "Comparison":
        """Return the comparison, by the exact test of Mann and Whitney and the interval that
        belongs to it (Hodges and Lehmann).

        It asks only which seeds are better than which: few seeds do not show how the objective is
        distributed, and a rate that is too large fails with some seeds.

        Args:
            best: the objective of the best configuration, by seed.
            own: of the recipe's own, as many.
            objective: which way is better.
        """
        rank = (objective or Objective()).rank
        gains = sorted(rank(theirs) - rank(ours) for ours in best for theirs in own)
        needed = _wins_needed(len(best), len(own))
        low, high = gains[len(gains) - needed], gains[needed - 1]
        verdict = "better" if low > 0 else ("worse" if high < 0 else "same")
        return cls(verdict, median(gains), low, high, len(best), tuple(best), tuple(own))


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


@dataclass(frozen=True)
class SearchResult:
    """What a search found."""

    state: SearchState
    reserved: frozenset[str] = frozenset()
    """Options of `hotlap train` itself: parameters with their names are given behind `--`."""

    @property
    def best(self) -> TrialState | None:
        """The best trial: by the mean over the other seeds where there are some."""
        found = finalists(self.state)
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
        """Return the objective with each of the other seeds that gave one."""
        done = sorted(trial.repeats.items())
        return [o.value for _, o in done if o.state == DONE and o.value is not None]

    @property
    def comparison(self) -> Comparison | None:
        """The best configuration against the recipe's own; None if these cannot be compared."""
        best, own = self.best, self.state.trials[0] if self.state.trials else None
        if best is None or own is None or self.state.spec.defaults is None or best is own:
            return None
        pairs = []
        for seed in range(1, self.state.spec.seeds + 1):
            pair = best.repeats.get(seed), own.repeats.get(seed)
            values = [each.value for each in pair if each is not None and each.value is not None]
            if len(values) == len(pair):
                pairs.append(values)
        if len(pairs) < LEAST_SEEDS:
            return None
        return Comparison.of(
            [each for each, _ in pairs], [each for _, each in pairs], self.state.spec.objective
        )

    @property
    def full_steps(self) -> int:
        """Steps that the same trials would have taken without early stopping."""
        last = self.state.spec.rungs[-1]
        return sum(
            trial.last.step if trial.last is not None and trial.last.is_over else last
            for trial in self.state.trials
        )

    @property
    def stopped_early(self) -> int:
        """Trials that have a value, and were not trained to the end."""
        last = len(self.state.spec.rungs) - 1
        return sum(
            trial.last is not None and not trial.failed and last not in trial.outcomes
            for trial in self.state.trials
        )

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
        return shlex.join(["hotlap", "train", spec.recipe, *(["--"] if is_taken else []), *given])

    def to_json(self) -> dict[str, Any]:
        """Return what `hotlap search --json` prints."""
        best, comparison = self.best, self.comparison
        spec = self.state.spec
        return {
            "search": spec.to_json(),
            "trials": [self._trial_json(trial) for trial in self.state.trials],
            "best": None if best is None else self._trial_json(best),
            "command": None if best is None else self.command(best),
            "repeated": [trial.number for trial in repeated(self.state)],
            "comparison": None if comparison is None else dict(vars(comparison)),
            "steps": self.state.steps,
            "full_steps": self.full_steps,
            "repeat_steps": self.repeat_steps,
            "stopped_early": self.stopped_early,
            "failures": self.failures,
        }

    def _trial_json(self, trial: TrialState) -> dict[str, Any]:
        last = trial.last
        return {
            "number": trial.number,
            "parameters": dict(trial.values),
            "state": "open" if last is None else last.state,
            "step": trial.steps,
            "value": None if last is None else last.value,
            "measures": {} if last is None else dict(last.measures),
            "seconds": 0.0 if last is None else last.seconds,
            "memory_bytes": 0 if last is None else last.memory_bytes,
            "error": "" if last is None else last.error,
            "rungs": {str(self.state.spec.rungs[k]): o.value for k, o in trial.outcomes.items()},
            "seeds": self.values_of(trial),
        }
