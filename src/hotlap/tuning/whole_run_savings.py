"""What plans save over the whole run: a faster step may not be worth a long start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.tuning.tuner import Tuner

_START_NOISE_S = 1.0
"""By which the starts of equal processes differ, two of which start at a time."""
_AS_GOOD = 0.97


@dataclass(frozen=True)
class Saving:
    """What a plan saves over the whole run, and what its start costs, in seconds."""

    start_s: float
    """How much longer it takes to start than the plain run, compiling included."""
    steps_s: float
    """What its steps save together."""

    @property
    def seconds(self) -> float:
        return self.steps_s - self.start_s

    def __str__(self) -> str:
        return f"its steps save {self.steps_s:.1f} s, and its start takes {self.start_s:.1f} s more"


def savings(tuner: Tuner, seen: Observation, final: Race) -> dict[str, Saving] | None:
    """Return what each arm saves, None where the plan is not chosen by it.

    Args:
        tuner: what the tuning shares.
        seen: the watched plain run, which knows how many steps the script has.
        final: the last race.
    """
    facts = seen.trace.facts
    if tuner.aim == "steady" or facts.planned_steps is None:
        return None
    plain_s = median(final.base_ms) / 1e3
    twins = [final.arms[name] for name in final.twins]
    found = {}
    for name, arm in final.arms.items():
        if name in final.twins:
            continue
        steps = facts.planned_steps
        fills = tuner.reads_all(arm.plan)
        if fills:
            # It serves from the second epoch on; in a race everything was read before.
            steps -= min(steps, facts.steps_per_epoch or 0)
        ratio = tuner.live.get(arm.plan) or final.ratio(name)
        start_s = _compiling_s(arm) - median(map(_compiling_s, twins))
        if not fills:
            start_s += arm.setup_s - median(twin.setup_s for twin in twins)
        longer_s = start_s if start_s > _START_NOISE_S else 0.0
        found[name] = Saving(longer_s, steps * plain_s * (1 - 1 / ratio.median))
    return found


def _compiling_s(arm: Arm) -> float:
    """Return what the first steps took beyond what such steps take later."""
    return arm.warm_up_s - sum(arm.warm_up) * median(arm.means_ms) / 1e3


def most_saving_first(names: Sequence[str], saved: Mapping[str, Saving]) -> list[str]:
    """Return the arms that save time over the whole run, those that save most first.

    Among those that save about as much the order stays: the fastest first, and of two that tie the
    simpler one.
    """
    worth = [name for name in names if saved[name].seconds > 0]
    most = max((saved[name].seconds for name in worth), default=0.0)
    best = [name for name in worth if saved[name].seconds >= _AS_GOOD * most]
    others = [name for name in worth if name not in best]
    return best + sorted(others, key=lambda name: saved[name].seconds, reverse=True)
