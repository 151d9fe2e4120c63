"""What plans save over the whole run: a faster step may not be worth a long start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import median

from hotlap.lab.arm import Arm
from hotlap.lab.observing import Observation
from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio
from hotlap.plan import Plan
from hotlap.tuning.tuner import Tuner

_START_NOISE_S = 1.0
"""By which the starts of equal processes differ, two of which start at a time."""
_WARM_UP_NOISE = 0.05
"""Share by which the first steps may be slower where nothing compiles: where they are 1000, as for
what acts late, that takes seconds."""
_AS_GOOD = 0.97
_WIDE = 0.1
"""Half of the interval of a speed-up, as a share, above which a live race was disturbed."""
_FAR_WIDER = 2.0
"""How many times as wide as those of fresh processes its intervals then are, if these decide."""


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
    facts = tuner.to_its_end(seen).trace.facts
    if tuner.aim == "steady" or facts.planned_steps is None:
        return None
    plain_s, tuner.live_decides = median(final.base_ms) / 1e3, _live_decides(tuner, final)
    found = {}
    for name, arm in final.arms.items():
        if name in final.twins:
            continue
        steps = facts.planned_steps
        if tuner.reads_all(arm.plan):
            # It serves from the second epoch on; in a race everything was read before.
            steps -= min(steps, facts.steps_per_epoch or 0)
        saved_s = steps * plain_s * (1 - 1 / _speedup(tuner, final, name))
        found[name] = Saving(longer_start_s(tuner, final, name), saved_s)
    return found


def _live_decides(tuner: Tuner, final: Race) -> bool:
    """Return whether plans are told apart by turns in the watched process.

    They are closer to each other than those of fresh processes, which differ by chance for as long
    as they live; unless the machine was disturbed while they were taken.
    """
    raced = {arm.plan: name for name, arm in final.arms.items() if name not in final.twins}
    live = [each for plan, each in tuner.live.items() if plan in raced]
    # What is surely slower than another one is not told apart from it by a width.
    lead = max((each.low for each in live), default=0.0)
    widths = [_width(each) for each in live if each.high >= lead]
    fresh = [_width(final.ratio(name)) for name in raced.values()]
    least = _FAR_WIDER * (max(fresh, default=0.0) + tuner.floor)
    return max(widths, default=0.0) <= max(_WIDE, least)


def _width(ratio: Ratio) -> float:
    return log(ratio.high / ratio.low) / 2


def _speedup(tuner: Tuner, final: Race, name: str) -> float:
    plan, fresh = final.arms[name].plan, final.ratio(name).median
    live = tuner.live.get(plan)
    if live is None or tuner.live_decides:
        return fresh if live is None else live.median
    return fresh * gained_late(tuner, plan)


def gained_late(tuner: Tuner, plan: Plan) -> float:
    """Return how many times more a plan gains late in a run than fresh processes show."""
    live = tuner.live.get(plan)
    return 1.0 if live is None else live.median / tuner.early_gains.get(plan, live.median)


def longer_start_s(tuner: Tuner, final: Race, name: str) -> float:
    """Return how many seconds longer than the plain run a plan takes to start, compiling included.

    Races share what they have compiled: a user's run takes what the first of them took.
    """
    plan = final.arms[name].plan
    twins = [final.arms[twin] for twin in final.twins]
    start_s = _longer_s(final.arms[name], median(map(_compiling_s, twins)))
    start_s = max(start_s, _compiled_before(tuner, plan))
    if not tuner.reads_all(plan):
        start_s += final.arms[name].setup_s - median(twin.setup_s for twin in twins)
    return start_s if start_s > _START_NOISE_S else 0.0


def keep_compiling(tuner: Tuner, race: Race) -> None:
    """Note what each plan of a race took to compile, where it is the longest so far.

    Beyond the slowest plain run: the longest of several is also the one that was most disturbed.
    """
    plain_s = max(_compiling_s(race.arms[twin]) for twin in race.twins)
    for name, arm in race.arms.items():
        if name not in race.twins:
            before = tuner.compiling_s.get(arm.plan, 0.0)
            tuner.compiling_s[arm.plan] = max(before, _longer_s(arm, plain_s))


def _compiled_before(tuner: Tuner, plan: Plan) -> float:
    """Return the longest that the plan, or a part of it, took to compile in any race."""
    of = plan.techniques
    found = [
        seconds
        for part, seconds in tuner.compiling_s.items()
        if all(of.get(name) == options for name, options in part.techniques.items())
    ]
    return max(found, default=0.0)


def _longer_s(arm: Arm, plain_s: float) -> float:
    """Return how much longer than the plain run a plan compiled, less what may be noise."""
    return _compiling_s(arm) - plain_s - _WARM_UP_NOISE * _steps_s(arm)


def _compiling_s(arm: Arm) -> float:
    """Return what the first steps took beyond what such steps take later."""
    return arm.warm_up_s - _steps_s(arm)


def _steps_s(arm: Arm) -> float:
    """Return what as many steps as the first ones take later."""
    return sum(arm.warm_up) * median(arm.means_ms) / 1e3


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
