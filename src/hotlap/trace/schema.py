"""`Trace`: phase times of steps, events, hot lines, and their means; `PHASES`. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, median, quantiles
from typing import Any

from hotlap.task import TaskFacts
from hotlap.trace.learning import Learning
from hotlap.trace.process_counts import ProcessCounts

PHASES = ("data", "forward", "backward", "optimizer", "other")
"""Every instant of a step belongs to exactly one of these.

`data`: waiting for a DataLoader that training reads; waits of an evaluation belong to `other`.
`forward`: from the call of the trained model to the start of backward, the loss included.
`backward`, `optimizer` (`zero_grad` included), `other`: whatever remains, copies to a device too,
which nothing measures apart, and all of a step that is replayed as a graph.
"""
ENOUGH_STEPS = 30
"""Steps that whole epochs must hold to be enough: one may hold a single batch, and the first steps
warm up."""


@dataclass(frozen=True)
class HotLine:
    """A line of the user's code, and the share of one phase's time that was spent below it."""

    phase: str
    where: str
    share: float
    """0 to 1."""
    text: str = ""
    """Of the line; empty if not known."""
    samples: int = 0
    """That were taken of it, 0 if not known."""


@dataclass(frozen=True)
class Spot:
    """A statement of the training loop that does not hold the update, and the time spent in it."""

    phase: str
    statement: str
    """`file:line` where it begins."""
    where: str
    """The line below it where most of its time is spent; `statement` if there is no such line."""
    library: str
    """The library's function that most of it is spent in, as called from the user's code; empty
    for none."""
    share: float
    """0 to 1, of all the time that steps took, whatever comes between them included."""
    samples: int
    text: str
    """The text of the line at `where`."""
    loop: str
    """The outermost loop in it, as in `for i in range(n)`; empty if most of the time is in none, or
    in one over layers."""
    loop_where: str
    """`file:line` of that loop, empty if there is none."""
    over_parameters: bool
    """True if that loop is over the parameters of a model."""
    evaluates: bool
    """True if the model is called in it without gradients."""
    runs_layers: bool = False
    """True if most of the time is spent in layers, of a model that is not trained for one."""
    in_own_line: bool = False
    """True if most of the time is spent in the statement's first line itself, and in no function of
    the user's that it calls."""


@dataclass(frozen=True)
class Event:
    """Something that the training loop did."""

    step: int
    """Steps done before it."""
    kind: str
    """A name of `hotlap.trace.event_kinds`."""
    where: str
    """`file:line` of the user's that asked for it, empty if there is none."""


@dataclass(frozen=True)
class Anchor:
    """How steps were recognised, and how sure that is."""

    kind: str
    confidence: str
    """`high`, `medium` or `low`."""
    votes: Mapping[str, int]
    """Signal -> how many it counted over the same window."""


@dataclass(frozen=True)
class Trace:
    """One observed run of a script, up to where it was stopped."""

    steps: Sequence[Sequence[float]]
    """One row a step: ms in each of `PHASES`. They add up to the step."""
    epoch_starts: Sequence[int]
    """Number of steps done when the training loader made an iterator."""
    facts: TaskFacts
    anchor: Anchor
    setup_s: float
    """From the process's start to the first batch of training."""
    lines: Sequence[HotLine] = field(default_factory=tuple)
    losses: Sequence[float] = field(default_factory=tuple)
    ended: str = "limit"
    """`limit` where hotlap stopped it, `script` where the script came to its own end."""
    clock: str = "host"
    events: Sequence[Event] = field(default_factory=tuple)
    spots: Sequence[Spot] = field(default_factory=tuple)
    evaluations: int = 0
    """Steps after which the model was evaluated, of those that were timed."""
    evaluates_first: bool = False
    """True if the model is evaluated before the first step."""
    learning: Learning = field(default_factory=Learning)
    process: ProcessCounts | None = None
    """None if the run was too short to count anything in it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Trace":
        """Read back what `to_json` wrote."""
        process = data.get("process")
        return cls(
            steps=tuple(tuple(row) for row in data["steps"]),
            epoch_starts=tuple(data["epoch_starts"]),
            facts=TaskFacts.from_json(data["facts"]),
            anchor=Anchor(**data["anchor"]),
            setup_s=data["setup_s"],
            lines=tuple(HotLine(**row) for row in data["lines"]),
            losses=tuple(data["losses"]),
            ended=data["ended"],
            clock=data["clock"],
            events=tuple(Event(**row) for row in data["events"]),
            spots=tuple(Spot(**row) for row in data.get("spots", ())),
            evaluations=data.get("evaluations", 0),
            evaluates_first=data.get("evaluates_first", False),
            learning=Learning.from_json(data.get("learning", {})),
            process=None if process is None else ProcessCounts(**process),
        )

    def window(self) -> range:
        """Return the steps to average over: whole epochs if there are any, else all but the first.

        The first step of a run allocates and warms up, so it is left out; a whole epoch, its
        evaluation and its start included, is what the user pays again and again.
        """
        starts = [start for start in self.epoch_starts if start < len(self.steps)]
        if len(starts) >= 2:
            # A step's record ends with its optimizer step, so what comes between two epochs is in
            # the first record of the later one: whole periods run from second step to second step.
            return range(starts[0] + 1, min(starts[-1] + 1, len(self.steps)))
        return range(min(1, len(self.steps) - 1), len(self.steps))

    @property
    def covers_whole_periods(self) -> bool:
        """True if evaluation and epoch starts are in the mean."""
        return len([start for start in self.epoch_starts if start < len(self.steps)]) >= 2

    def phase_means(self) -> dict[str, float]:
        """Return phase -> ms of the mean step."""
        rows = [self.steps[i] for i in self.window()]
        return {name: fmean(row[k] for row in rows) for k, name in enumerate(PHASES)}

    @property
    def has_later_epoch(self) -> bool:
        """True if an epoch after the first was observed as a whole."""
        return len([start for start in self.epoch_starts if start < len(self.steps)]) >= 3

    def steady_phases(self) -> dict[str, float]:
        """Return phase -> ms of the mean step of the last whole epoch.

        Where it is shorter than `ENOUGH_STEPS`, of so many that hold them, without the first one.
        Where no epoch but the first was observed as a whole, it is `phase_means()`.
        """
        if not self.has_later_epoch:
            return self.phase_means()
        starts = [start for start in self.epoch_starts if start < len(self.steps)]
        several = [start for start in starts[1:-1] if starts[-1] - start >= ENOUGH_STEPS]
        rows = self.steps[max(several, default=starts[1]) + 1 : starts[-1] + 1]
        return {name: fmean(row[k] for row in rows) for k, name in enumerate(PHASES)}

    def timeline(self, most: int = 120) -> dict[str, Any]:
        """Return the phases over time, as JSON: at most so many means of neighbouring steps.

        The first step is left out: it allocates and warms up, and may take a hundred others.
        """
        first = min(1, len(self.steps) - 1)
        each = max(1, -(-(len(self.steps) - first) // most))
        bins = [self.steps[at : at + each] for at in range(first, len(self.steps), each)]
        return {
            "steps": [first + 1 + place * each for place in range(len(bins))],
            "phases": {
                name: [fmean(row[k] for row in rows) for rows in bins]
                for k, name in enumerate(PHASES)
            },
            "each": each,
            "epochs": [start + 1 for start in self.epoch_starts],
        }

    def step_ms(self) -> dict[str, float]:
        """Return median, mean, low and high (5th and 95th percentile) and n of a step, in ms."""
        totals = [sum(self.steps[i]) for i in self.window()]
        cuts = quantiles(totals, n=20) if len(totals) > 1 else [totals[0]] * 19
        return {
            "median": median(totals),
            "mean": fmean(totals),
            "low": cuts[0],
            "high": cuts[-1],
            "n": len(totals),
        }
