"""`SearchState`: trials, open jobs and outcomes by a journal, ranked at each rung. No torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hotlap.search.fronts import best_first, first_front
from hotlap.search.space import Value
from hotlap.search.spec import SearchSpec

DONE = "done"
FAILURES = ("memory", "nan", "crash")
"""Ends of a trial without a value."""


class Job(NamedTuple):
    """A part of a trial: from where it stands to a rung."""

    trial: int
    rung: int
    """Number of the rung, from 0."""
    repeat: int = 0
    """What is added to the task's seed, 0 for the trial itself."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    job: Job
    state: str
    """`done`, or one of `FAILURES`."""
    step: int = 0
    """Of the trial, at its end."""
    value: float | None = None
    """Of the objective; None if it failed."""
    measures: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """Training of the trial so far."""
    memory_bytes: int = 0
    """Peak of the trial's process."""
    error: str = ""
    is_over: bool = False
    """Nothing is left to train, whatever rungs there are."""
    whole_steps: int | None = None
    """Steps of the trial's own task, None if it does not say."""

    def named(self, name: str) -> float | None:
        """Return what an objective of that name was here, None if it was not measured."""
        built_in = {"seconds": self.seconds, "memory": float(self.memory_bytes)}
        return {**built_in, **self.measures}.get(name)

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the journal."""
        rest = {key: value for key, value in vars(self).items() if key != "job"}
        return {**self.job._asdict(), **rest, "measures": dict(self.measures)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Outcome":
        """Return what `to_json` wrote."""
        job = Job(data["trial"], data["rung"], data["repeat"])
        names = ("state", "step", "value", "measures", "seconds", "memory_bytes", "error")
        rest = {"is_over": data["is_over"], "whole_steps": data.get("whole_steps")}
        return cls(job, **{name: data[name] for name in names}, **rest)


@dataclass
class TrialState:
    """One configuration."""

    number: int
    values: Mapping[str, Value | None]
    """None for a default of the recipe that is None."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """By rung."""
    repeats: dict[int, Outcome] = field(default_factory=dict)
    """By what is added to the seed."""

    @property
    def last(self) -> Outcome | None:
        """The outcome at the highest rung that it has come to."""
        return self.outcomes[max(self.outcomes)] if self.outcomes else None

    @property
    def failed(self) -> bool:
        """True if it ended without a value."""
        return self.last is not None and self.last.state != DONE

    @property
    def steps(self) -> int:
        """Steps that it has taken, without repeats."""
        return max((each.step for each in self.outcomes.values()), default=0)


@dataclass
class SearchState:
    """What happened in a search; everything that is decided follows from this."""

    spec: SearchSpec
    trials: list[TrialState] = field(default_factory=list)
    open: dict[Job, Mapping[str, Any]] = field(default_factory=dict)
    """Jobs that were decided and have no outcome -> the last lease of each, empty if none."""

    def apply(self, record: Mapping[str, Any]) -> None:
        """Take one line of the journal in."""
        kind = record["kind"]
        if kind == "search":
            return
        job = Job(record["trial"], record["rung"], record["repeat"])
        if kind == "job":
            if job.trial == len(self.trials):
                self.trials.append(TrialState(job.trial, record["values"]))
            self.open[job] = {}
        elif kind == "lease":
            self.open[job] = record
        elif kind == "result":
            self.open.pop(job, None)
            outcome, trial = Outcome.from_json(record), self.trials[job.trial]
            if job.repeat:
                trial.repeats[job.repeat] = outcome
                return
            # One that is over has come to every rung that is left.
            last = len(self.spec.rungs) if outcome.is_over else job.rung + 1
            for rung in range(job.rung, last):
                trial.outcomes[rung] = outcome

    @property
    def steps(self) -> int:
        """Steps that the search has taken, without repeats."""
        return sum(trial.steps for trial in self.trials)

    def values_of(self, outcome: Outcome | None) -> tuple[float, ...] | None:
        """Return the objectives of an outcome; None if there is none, or one was not measured."""
        if outcome is None or outcome.state != DONE or outcome.value is None:
            return None
        more = [outcome.named(each.name) for each in self.spec.more]
        known = [each for each in more if each is not None]
        return (outcome.value, *known) if len(known) == len(more) else None

    def is_too_large(self, outcome: Outcome) -> bool:
        """True if a trial held more memory than candidates may."""
        limit = self.spec.memory_bytes
        return limit is not None and outcome.memory_bytes > limit

    def ranks_at(self, trial: TrialState, rung: int) -> tuple[float, ...] | None:
        """Return the objectives of a trial at a rung, the smaller the better; None if it is not
        there or is no candidate."""
        outcome = trial.outcomes.get(rung)
        values = self.values_of(outcome)
        if outcome is None or values is None or self.is_too_large(outcome):
            return None
        return tuple(
            each.rank(value) for each, value in zip(self.spec.objectives, values, strict=True)
        )

    def ranked(self, rung: int, trials: Iterable[TrialState] | None = None) -> list[TrialState]:
        """Return the candidates at a rung, the best first; equal ones by their number."""
        found, points = self._candidates(rung, self.trials if trials is None else trials)
        return [found[index] for index in best_first(points)]

    def front(self, rung: int) -> list[TrialState]:
        """Return the candidates at a rung of which none is better than another in everything."""
        found, points = self._candidates(rung, self.trials)
        return [found[index] for index in first_front(points)]

    def _candidates(
        self, rung: int, trials: Iterable[TrialState]
    ) -> tuple[list[TrialState], list[tuple[float, ...]]]:
        rows = [
            (trial, ranks)
            for trial in sorted(trials, key=lambda each: each.number)
            if (ranks := self.ranks_at(trial, rung)) is not None
        ]
        return [trial for trial, _ in rows], [ranks for _, ranks in rows]


def replay(spec: SearchSpec, records: Iterable[Mapping[str, Any]]) -> SearchState:
    """Return the state after some lines of a journal."""
    state = SearchState(spec)
    for record in records:
        state.apply(record)
    return state
