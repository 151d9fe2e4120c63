"""`Tuner`: state of a running tuning: lab, host, budget and trials."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotlap.lab.decisions import Decision
from hotlap.lab.late_steps import LateSteps
from hotlap.lab.observing import Observation, with_length
from hotlap.lab.statistics import Ratio, is_gain
from hotlap.lab.subject import plain
from hotlap.lab.trial import Lab
from hotlap.lab.turn_lengths import late_age
from hotlap.plan import Plan
from hotlap.task import TaskFacts
from hotlap.techniques import Numerics, Technique
from hotlap.tuning.budget import Budget
from hotlap.tuning.candidates import Candidate
from hotlap.tuning.hints import Hint
from hotlap.tuning.kept_tunings import KeptTuning
from hotlap.tuning.result import TrialRow
from hotlap.tuning.technique_notes import Notes
from hotlap.tuning.time_plan import TimePlan

ACCEPT = ("exact", "rounding", "statistical")
WEAKEST = {
    "exact": Numerics.EXACT,
    "rounding": Numerics.ROUNDING,
    "statistical": Numerics.STREAM,
}
AIMS = ("run", "steady")
"""What a plan is chosen by: the predicted time of the whole run, or that of a later step."""
Progress = Callable[[str], None]


@dataclass
class Tuner:
    """What the parts of one tuning share."""

    lab: Lab
    host: Any
    known: Mapping[str, Technique]
    accept: str
    budget: Budget
    progress: Progress
    hints: Sequence[Hint] = ()
    trials: list[TrialRow] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)
    unhinted: dict[str, str] = field(default_factory=dict)
    """Plan of a hint -> why it is no candidate."""
    live: Mapping[Plan, Ratio] = field(default_factory=dict)
    """What plans gained in one live process, to be confirmed in fresh ones."""
    live_floor: float = 0.0
    """How far the plain script was from itself there; a gain must exceed it."""
    floor: float = 0.0
    """The same of the races in fresh processes, once there were some."""
    aim: str = "run"
    """One of `AIMS`."""
    most_steps: int | None = None
    """Steps that are watched, and that a proof follows, at most."""
    memory: int | None = None
    """Bytes that a plan may hold at once, None for any number."""
    is_late_live: bool = False
    """True where fresh processes have no time to get to the age at which what acts late shows: it
    is raced, and its steps are kept, in the watched process."""
    late_steps: Mapping[Plan, LateSteps] = field(default_factory=dict)
    """What was kept of such plans, for their proofs."""
    early_gains: Mapping[Plan, float] = field(default_factory=dict)
    """What such plans gain before, which is all that fresh processes can show."""
    live_decides: bool = True
    """True if plans are told apart by turns in the watched process, False if these were disturbed,
    and fresh processes decide."""
    slowed: float = 1.0
    """How many times as long as undisturbed ones steps take while other processes have the cores,
    over all turns in the watched process."""
    slowdown: float = 1.0
    """How many times as long as an early step of the plain run a late one is known to take."""
    ended_after: int | None = None
    """Steps after which the plain script ended in a race, None if it never came so far."""
    plain_peak_bytes: int | None = None
    """Most bytes that the plain run held at once in races."""
    compiling_s: dict[Plan, float] = field(default_factory=dict)
    """The longest that a plan took to compile in a race; later ones find what it has made."""
    kept: KeptTuning = field(default_factory=KeptTuning)
    """What an earlier tuning measured, and where to keep more."""
    time_plan: TimePlan = field(init=False)

    @property
    def owns_step(self) -> bool:
        """True if hotlap's engine takes the steps."""
        return self.lab.subject.step_owner == "engine"

    def to_its_end(self, seen: Observation) -> Observation:
        """Return what was seen, with the length that a race has shown where that is less.

        A script may end before its loops say, as by early stopping.
        """
        planned, ended = seen.trace.facts.planned_steps, self.ended_after
        if ended is None or (planned is not None and planned <= ended):
            return seen
        return replace(seen, trace=with_length(seen.trace, ended))

    def follows_at_once(self, facts: TaskFacts) -> bool:
        """True if a proof follows the plain run and a plan's at the same time.

        Races have held more than two processes at a time, unless a device has no memory for that.
        """
        fit = facts.processes_at_once
        return not self.owns_step and (fit is None or fit >= 2)

    def live_gains(self) -> dict[Plan, Ratio]:
        """Return what gained in one live process by more than the plain script was from itself."""
        return {plan: each for plan, each in self.live.items() if is_gain(each, self.live_floor)}

    def note_alone(self, alone: Mapping[Candidate, Decision]) -> None:
        """Note what techniques gave alone in one process."""
        for candidate, decision in alone.items():
            self.notes.note_live(candidate, decision)
            ratio = decision.ratio
            if ratio is not None:
                why, by_means = decision.why, decision.by_means
                self.trials.append(TrialRow(candidate.plan(), 0, ratio, None, why, by_means))

    def gains_to_confirm(self) -> dict[Plan, float]:
        """Return what fresh processes should show of what gained in one live process."""
        live = self.live_gains()
        return {plan: self.early_gains.get(plan, each.median) for plan, each in live.items()}

    def reads_all(self, plan: Plan) -> bool:
        """True if a technique of the plan keeps the whole data set in memory."""
        return any(self.known[name].memory.keeps_dataset for name in plan.techniques)

    def acts_late(self, plan: Plan) -> bool:
        """True if a technique of the plan does nothing in the first steps of a run."""
        return any(self.known[name].acts_late for name in plan.techniques)

    def age_for(self, seen: Observation, plans: Iterable[Plan]) -> int:
        """Return the steps that a fresh process takes before one of the plans shows, 0 if all do
        at once, or are judged in the watched process."""
        is_late = not self.is_late_live and any(map(self.acts_late, plans))
        return late_age(len(seen.trace.steps)) if is_late else 0

    @property
    def plain(self) -> str:
        return plain(self.lab.subject)
