"""Orders the plans that gained in a race: the fastest first, of two that tie the simpler one."""

from collections.abc import Mapping
from math import log

from hotlap.lab.process_race import Race
from hotlap.lab.statistics import paired_ratio
from hotlap.plan import Plan
from hotlap.trial.evidence import WORTH

_CLEAR_LEAD = 1.02
"""How much faster, at the median, a plan must be to be preferred to a simpler one."""
_CONFIRMING_SHARE = 0.5


def fastest_first(
    final: Race,
    floor: float,
    before: Race | None = None,
    to_confirm: Mapping[Plan, float] | None = None,
) -> list[str]:
    """Return the arms that gained, the fastest first; of two that tie, the one with less in it.

    Args:
        final: the last race.
        floor: what a gain must exceed.
        before: the race before it, with other processes; whatever was in it must have gained there
            too. Processes differ for as long as they live, and one race does not show that.
        to_confirm: what plans gained in one live process, and fresh ones can show.
    """
    names = [name for name in final.arms if name not in final.twins]
    gained = [n for n in names if has_gained(final, n, floor, to_confirm or {})]
    names = [name for name in gained if final.took_effect(name)]
    if before is not None:
        names = [n for n in names if n not in before.arms or before.gains(n, floor)]
    names.sort(key=lambda name: final.ratio(name).median, reverse=True)
    ordered: list[str] = []
    for name in names:
        arm = final.arms[name]
        position = len(ordered)
        while position > 0:
            ahead = final.arms[ordered[position - 1]]
            lead = paired_ratio(arm.turns_ms, ahead.turns_ms)
            is_simpler = len(arm.plan.techniques) < len(ahead.plan.techniques)
            if lead.low > 1 or lead.median > max(_CLEAR_LEAD, 1 + floor) or not is_simpler:
                break
            position -= 1
        ordered.insert(position, name)
    return ordered


def has_gained(final: Race, name: str, floor: float, to_confirm: Mapping[Plan, float]) -> bool:
    """True if a plan gained in a race, or confirmed what it had gained elsewhere."""
    return final.gains(name, floor) or is_confirmed(final, name, floor, to_confirm)


def is_confirmed(final: Race, name: str, floor: float, to_confirm: Mapping[Plan, float]) -> bool:
    """True if fresh processes show at least half of what a plan gained in one live process.

    That it gains is known from there, to 1 in 100; what differs between processes only, such as
    where their memory lies, is all that may still take it away. Of what gains nothing in young
    processes they can only show that it is no slower.
    """
    gained = to_confirm.get(final.arms[name].plan)
    if gained is None:
        return False
    least, by_means = _CONFIRMING_SHARE * log(gained), 0.0
    if gained <= 1 + WORTH:
        least = by_means = -log(1 + floor)
    # By the means, too: what stalls a few steps shows in no turn of 60 ms.
    is_faster = log(final.ratio_of_means(name)) > by_means
    return is_faster and log(final.ratio(name).median) >= least
