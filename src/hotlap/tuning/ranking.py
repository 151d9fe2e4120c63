"""Ranks the plans that gained."""

from hotlap.lab.pairs import Race
from hotlap.lab.statistics import paired_ratio

_CLEAR_LEAD = 1.02
"""How much faster, at the median, a plan must be to be preferred to a simpler one."""


def fastest_first(final: Race, floor: float, before: Race | None = None) -> list[str]:
    """Return the arms that gained, the fastest first; of two that tie, the one with less in it.

    Args:
        final: the last race.
        floor: what a gain must exceed.
        before: the race before it, with other processes; whatever was in it must have gained there
            too. Processes differ for as long as they live, and one race does not show that.
    """
    names = [name for name in final.arms if name not in final.twins]
    names = [name for name in names if final.gains(name, floor) and final.took_effect(name)]
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
            if lead.low > 1 or lead.median > _CLEAR_LEAD or not is_simpler:
                break
            position -= 1
        ordered.insert(position, name)
    return ordered
