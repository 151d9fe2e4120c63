"""Orders the plans that gained in a race: the fastest first, of two that tie the simpler one."""

from collections.abc import Mapping
from math import log

from hotlap.lab.process_race import Race
from hotlap.lab.statistics import Ratio, paired_ratio
from hotlap.plan import Plan

_CLEAR_LEAD = 1.02
"""How much faster, at the median, a plan must be to be preferred to a simpler one."""
_CONFIRMING_SHARE = 0.5


def fastest_first(
    final: Race,
    floor: float,
    before: Race | None = None,
    live: Mapping[Plan, Ratio] | None = None,
) -> list[str]:
    """Return the arms that gained, the fastest first; of two that tie, the one with less in it.

    Args:
        final: the last race.
        floor: what a gain must exceed.
        before: the race before it, with other processes; whatever was in it must have gained there
            too. Processes differ for as long as they live, and one race does not show that.
        live: what plans gained in one live process.
    """
    names = [name for name in final.arms if name not in final.twins]
    names = [n for n in names if _has_gained(final, n, floor, live or {}) and final.took_effect(n)]
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


def _has_gained(final: Race, name: str, floor: float, live: Mapping[Plan, Ratio]) -> bool:
    return final.gains(name, floor) or is_confirmed(final, name, live)


def is_confirmed(final: Race, name: str, live: Mapping[Plan, Ratio]) -> bool:
    """True if fresh processes show at least half of what a plan gained in one live process.

    That it gains is known from there, to 1 in 100; what differs between processes only, such as
    where their memory lies, is all that may still take it away.
    """
    gained = live.get(final.arms[name].plan)
    if gained is None:
        return False
    # By the means, too: what stalls a few steps shows in no turn of 60 ms.
    is_faster = final.ratio_of_means(name) > 1
    return is_faster and log(final.ratio(name).median) >= _CONFIRMING_SHARE * log(gained.median)
