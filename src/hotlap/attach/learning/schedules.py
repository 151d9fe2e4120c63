"""Counts the calls of each learning-rate schedule of a watched run; its period and rates."""

from dataclasses import dataclass
from typing import Any

from hotlap.trace.learning import ScheduleFacts

_PERIODS = ("T_max", "step_size", "total_steps", "T_0", "total_iters")


@dataclass
class _Known:
    schedule: Any
    where: str
    first_rate: float
    calls: int = 0


class Schedules:
    """Counts the calls of each schedule."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def add(self, schedule: Any, where: str) -> None:
        """Note that the script is about to step a schedule."""
        for each in self._known:
            if each.schedule is schedule:
                each.calls += 1
                return
        self._known.append(_Known(schedule, where, _rate(schedule), calls=1))

    def facts(self) -> tuple[ScheduleFacts, ...]:
        """Return what was seen."""
        return tuple(
            ScheduleFacts(
                name=type(each.schedule).__name__,
                where=each.where,
                calls=each.calls,
                period=_period(each.schedule),
                first_rate=each.first_rate,
                last_rate=_rate(each.schedule),
            )
            for each in self._known
        )


def _rate(schedule: Any) -> float:
    return float(schedule.optimizer.param_groups[0]["lr"])


def _period(schedule: Any) -> int | None:
    milestones = getattr(schedule, "milestones", None)
    if milestones:
        return min(milestones)
    for name in _PERIODS:
        value = getattr(schedule, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
