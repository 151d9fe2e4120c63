"""Times steps with autocast as the subject has it and switched, in turns within one process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hotlap.errors import TrialError
from hotlap.lab.observing import watch
from hotlap.lab.statistics import Ratio, Spread, paired_ratio, spread
from hotlap.lab.trial import Lab
from hotlap.plan import Plan
from hotlap.trace.schema import PHASES

TURN = 5
"""Steps of a turn. The first meets caches of the other way, and with several optimizers the last
lies partly in the next turn: those between them count."""
COUNTED = TURN - 2
PHASES_TIMED = ("forward", "backward", "optimizer", "step")
_MOST_TURNS = 40
_WARM_UP = 2
"""First turns, one each way, that do not count."""
_LEAST_PAIRS = 2
_ANY_EPOCHS = 10**9


@dataclass(frozen=True)
class PhaseTimes:
    """ms of one phase of a step, both ways."""

    as_it_is: Spread
    switched: Spread
    ratio: Ratio
    """How many times faster it is switched, by pairs of turns."""


def time_autocast(
    lab: Lab,
    plan: Plan | None,
    change: str,
    *,
    seconds: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Mapping[str, PhaseTimes]:
    """Return phase -> its times; `step` is all of a step.

    Args:
        lab: where the trial is held.
        plan: what is applied, with the technique `autocast` in it where a recipe is switched on.
        change: `on` or `off`, see `hotlap.trial.autocast_gate`.
        seconds: how long steps are timed at most.
        progress: told how long it takes, where a step is long.

    Raises:
        TrialError: the trial failed, or had too few steps.
    """
    seen = watch(
        lab,
        plan,
        seconds=seconds,
        epochs=_ANY_EPOCHS,
        steps=_MOST_TURNS * TURN,
        autocast=change,
        autocast_turns=TURN,
        progress=progress,
    )
    return compare_turns(seen.trace.steps)


def compare_turns(rows: Sequence[Sequence[float]]) -> Mapping[str, PhaseTimes]:
    """Return phase -> its times, from steps that were taken in turns.

    Args:
        rows: ms by phase of every step, from the first one.

    Raises:
        TrialError: there are too few.
    """
    count = len(rows) // TURN
    turns = [_medians(rows[number * TURN :][:TURN]) for number in range(_WARM_UP, count)]
    base, other = turns[0::2], turns[1::2]
    pairs = min(len(base), len(other))
    if pairs < _LEAST_PAIRS:
        least = (_WARM_UP + 2 * _LEAST_PAIRS) * TURN
        raise TrialError(
            f"{len(rows)} steps were taken in the time that was left, and {least} are needed",
            reason="ended_early",
        )
    found = {}
    for name in PHASES_TIMED:
        before = [turn[name] for turn in base[:pairs]]
        after = [turn[name] for turn in other[:pairs]]
        if min(before) > 0 and min(after) > 0:
            found[name] = PhaseTimes(spread(before), spread(after), paired_ratio(before, after))
    return found


def _medians(turn: Sequence[Sequence[float]]) -> dict[str, float]:
    counted = turn[1 : 1 + COUNTED]
    found = {name: median(row[k] for row in counted) for k, name in enumerate(PHASES)}
    return {**found, "step": median(sum(row) for row in counted)}
