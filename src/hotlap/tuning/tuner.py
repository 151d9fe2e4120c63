"""`Tuner`: state of a running tuning: lab, host, budget and trials."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotlap.lab.statistics import Ratio
from hotlap.lab.subject import plain
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.techniques import Numerics, Technique
from hotlap.tuning.budget import Budget
from hotlap.tuning.hints import Hint
from hotlap.tuning.result import TrialRow
from hotlap.tuning.technique_notes import Notes
from hotlap.tuning.time_plan import TimePlan

ACCEPT = ("exact", "rounding", "statistical")
WEAKEST = {
    "exact": Numerics.EXACT,
    "rounding": Numerics.ROUNDING,
    "statistical": Numerics.STREAM,
}
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
    floor: float = 0.0
    time_plan: TimePlan = field(init=False)

    @property
    def owns_step(self) -> bool:
        """True if hotlap's engine takes the steps."""
        return self.lab.subject.step_owner == "engine"

    @property
    def plain(self) -> str:
        return plain(self.lab.subject)
