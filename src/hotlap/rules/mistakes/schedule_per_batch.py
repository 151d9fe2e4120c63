"""A learning-rate schedule whose period is in epochs is stepped for every batch.

What it sees   a schedule that is stepped as often as the optimizer, with a period (`T_max`,
               `step_size`, milestones) no larger than the number of epochs and shorter than one
               epoch; or one that takes the rate below a thousandth within one epoch. Where epochs
               are not known, one that took it there in the first half of what was watched, and left
               it there.
Why it matters the rate falls, or turns, within the first epoch where it is meant to do so over all
               of them.
What to do     step it once an epoch, or give its period in steps.
Evidence       counts of the calls, and the learning rates. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.learning import ScheduleFacts
from hotlap.trace.schema import Trace

_LEAST = 10
"""Steps of an epoch from which on a batch and an epoch can be told apart."""
_VANISHED = 1e-3
_LONG = 50
"""Calls with next to no learning rate that are no end of a run."""
_WORTH = 0.01
"""Share of the first rate that is left at the end of a run, where it decays as it is meant to."""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of a schedule that comes too often."""
    facts, steps = trace.facts, len(trace.steps)
    per_epoch, planned = facts.steps_per_epoch, facts.planned_steps
    if per_epoch is None or planned is None:
        return [_nominate_vanished(each) for each in trace.learning.schedules if _is_over(each)]
    if per_epoch < _LEAST or planned < 2 * per_epoch:
        return []
    epochs = planned / per_epoch
    found = []
    for schedule in trace.learning.schedules:
        if schedule.calls < 0.9 * steps or schedule.calls < _LEAST:
            continue
        # One that is given a part of an epoch goes as far in an epoch as it should.
        if schedule.advanced is not None and schedule.advanced < schedule.calls / 2:
            continue
        if not (
            (_is_in_epochs(schedule, epochs, per_epoch) and not _decays_slowly(schedule, planned))
            or (schedule.period is None and _vanishes(schedule, per_epoch))
            or (
                schedule.name == "ExponentialLR" and _share_after(schedule, planned / 2) < _VANISHED
            )
        ):
            continue
        period = "" if schedule.period is None else f" with a period of {schedule.period}"
        found.append(
            mistake(
                schedule.where,
                f"{schedule.name}{period} was stepped in each step, {schedule.calls} times so far, "
                f"and an epoch has {per_epoch} steps: the learning rate went from "
                f"{schedule.first_rate:.3g} to {schedule.last_rate:.3g}",
                "step the schedule once an epoch, or give its period in steps",
            )
        )
    return found


def _is_over(schedule: ScheduleFacts) -> bool:
    """Return whether the rate had vanished long before the watched steps ended."""
    has_stayed = schedule.last_rate < _VANISHED * schedule.first_rate
    when = schedule.vanished
    return when is not None and has_stayed and schedule.calls >= max(2 * when, when + _LONG)


def _nominate_vanished(schedule: ScheduleFacts) -> Nomination:
    return mistake(
        schedule.where,
        f"{schedule.name} took the learning rate from {schedule.first_rate:.3g} to less than a "
        f"thousandth of it in {schedule.vanished} calls, and was called {schedule.calls} times so "
        f"far: it is {schedule.last_rate:.3g} now",
        "step the schedule once an epoch, or give its period in steps",
    )


def _is_in_epochs(schedule: ScheduleFacts, epochs: float, per_epoch: int) -> bool:
    """Return whether a period is one of epochs, as far as that can be told."""
    period = schedule.period
    return period is not None and period <= max(epochs, 1) and period < per_epoch


def _share_after(schedule: ScheduleFacts, steps: float) -> float:
    """Return the share of the first rate that is left after so many calls, if it goes on so."""
    # A warm-up begins at 0.
    if schedule.first_rate <= 0:
        return 1.0
    share = max(schedule.last_rate, 0.0) / schedule.first_rate
    return min(1.0, share) ** (steps / schedule.calls)


def _decays_slowly(schedule: ScheduleFacts, planned: int) -> bool:
    """Return whether a rate that falls again and again is still worth something at the end."""
    share = _share_after(schedule, planned)
    return schedule.name == "StepLR" and _WORTH < share < 1


def _vanishes(schedule: ScheduleFacts, per_epoch: int) -> bool:
    """Return whether the rate falls below a thousandth within one epoch."""
    if schedule.vanished is not None or schedule.calls >= per_epoch:
        return schedule.vanished is not None and schedule.vanished <= per_epoch
    return _share_after(schedule, per_epoch) < _VANISHED


RULE = Rule(name="schedule_per_batch", kind="mistake", nominate=nominate)
