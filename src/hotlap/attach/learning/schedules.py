"""Counts the calls of each learning-rate schedule of a watched run; its period and rates."""

from dataclasses import dataclass
from typing import Any

from torch.optim.lr_scheduler import ConstantLR, LinearLR

from hotlap.trace.learning import ScheduleFacts

_PERIODS = ("T_max", "step_size", "total_steps", "T_0", "total_iters")
_WARM_UPS = (LinearLR, ConstantLR)
"""Their `total_iters` are those after which they stay as they are."""
_VANISHED = 1e-3


@dataclass
class _Known:
    schedule: Any
    where: str
    first_rate: float
    first_epoch: int | None
    calls: int = 0
    vanished: int | None = None
    """Calls after which the rate was below a thousandth of the first one."""


class Schedules:
    """Counts the calls of each schedule."""

    def __init__(self) -> None:
        self._known: list[_Known] = []

    def add(self, schedule: Any, where: str) -> None:
        """Note that the script is about to step a schedule."""
        for each in self._known:
            if each.schedule is schedule:
                if each.vanished is None and _has_vanished(each):
                    each.vanished = each.calls
                each.calls += 1
                return
        self._known.append(_Known(schedule, where, _rate(schedule), _epoch(schedule), calls=1))

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
                advanced=_advanced(each),
                vanished=each.vanished,
            )
            for each in self._known
        )


def _rate(schedule: Any) -> float:
    return float(schedule.optimizer.param_groups[0]["lr"])


def _has_vanished(known: _Known) -> bool:
    rate = known.schedule.optimizer.param_groups[0]["lr"]
    # A tensor on a device would have to be waited for.
    return isinstance(rate, float | int) and rate < _VANISHED * known.first_rate


def _epoch(schedule: Any) -> int | None:
    """Return how far a schedule has gone; one that chains others does not say."""
    epoch = getattr(schedule, "last_epoch", None)
    return epoch if isinstance(epoch, int) else None


def _advanced(known: _Known) -> int | None:
    now = _epoch(known.schedule)
    return None if now is None or known.first_epoch is None else now - known.first_epoch


def _period(schedule: Any) -> int | None:
    if isinstance(schedule, _WARM_UPS):
        return None
    milestones = getattr(schedule, "milestones", None)
    if milestones:
        return min(milestones)
    for name in _PERIODS:
        value = getattr(schedule, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
