"""`Tried`, `Trials`: what came of the plans that a diagnosis has tried, with the words for it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.techniques import Technique, numerics_of, registry


@dataclass(frozen=True)
class Tried:
    """One plan, and what came of it."""

    plan: Plan
    ratio: Ratio | None
    """How many times faster it was; None if it could not be measured."""
    words: str
    is_gain: bool = False
    is_open: bool = False
    """True if it may be faster, by less than could be told here."""
    why: str = ""
    """Why a gain that its interval shows is not claimed, if that is known."""
    floor: float = 0.0
    """How far identical runs differed where it was measured."""
    step: str = "median"
    """What it was compared by: the `median` of steps, or their `mean` where turns were whole
    epochs."""
    known: Mapping[str, Technique] | None = None

    @property
    def numerics(self) -> str:
        """What the plan's techniques claim."""
        return numerics_of(self.plan, self.known).value

    @property
    def by_hand(self) -> str:
        """What does the same in a script; empty for what only a plan can do."""
        known = registry() if self.known is None else self.known
        said = []
        for name, values in self.plan.techniques.items():
            # The plan need not name an option that has its default.
            options = asdict(known[name].options(values))
            said.append(known[name].by_hand.format(**options))
        return "; ".join(filter(None, said))


@dataclass(frozen=True)
class Trials:
    """What came of each plan that was tried, by its name."""

    tried: Mapping[str, Tried]
    floor: float
    """How far identical runs differ."""

    def of(self, plan: Plan) -> Tried | None:
        """Return what came of a plan, None if it was not tried."""
        return self.tried.get(str(plan))

    def of_all(self, plans: Sequence[Plan]) -> list[Tried]:
        """Return what came of those plans that were tried."""
        return [tried for plan in plans if (tried := self.of(plan)) is not None]

    def with_more(self, others: "Trials") -> "Trials":
        """Return both; what the others say of a plan counts."""
        return Trials({**self.tried, **others.tried}, max(self.floor, others.floor))


def in_words(plan: Plan, ratio: Ratio) -> str:
    """Return what a plan gave, with its interval."""
    return f"{plan} gave {ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"


def with_doubt(tried: Tried) -> str:
    """Return what a plan gave, and why that is not claimed where its interval shows a gain."""
    if tried.is_gain or tried.ratio is None or tried.ratio.low <= 1 + tried.floor:
        return tried.words
    return f"{tried.words}, but {tried.why or f'{tried.ratio.pairs} turns are too few to be sure'}"
