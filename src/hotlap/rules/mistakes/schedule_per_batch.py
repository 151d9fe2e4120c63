"""A learning-rate schedule whose period is in epochs is stepped for every batch.

What it sees   a schedule that is stepped as often as the optimizer, with a period (`T_max`,
               `step_size`, milestones) no larger than the number of epochs and shorter than one
               epoch; or one that takes the rate below a thousandth within one epoch.
Why it matters the rate falls, or turns, within the first epoch where it is meant to do so over all
               of them.
What to do     step it once an epoch, or give its period in steps.
Evidence       counts of the calls, and the learning rates. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace

_LEAST = 10
"""Steps of an epoch from which on a batch and an epoch can be told apart."""
_VANISHED = 1e-3


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of a schedule that comes too often."""
    facts, steps = trace.facts, len(trace.steps)
    per_epoch, planned = facts.steps_per_epoch, facts.planned_steps
    if per_epoch is None or planned is None or per_epoch < _LEAST or planned < 2 * per_epoch:
        return []
    epochs = planned / per_epoch
    found = []
    for schedule in trace.learning.schedules:
        if schedule.calls < 0.9 * steps or schedule.calls < _LEAST:
            continue
        fits_epochs = schedule.period is not None and schedule.period <= max(epochs, 1)
        # As it would be after one epoch, if it goes on as it did.
        share = max(schedule.last_rate, 0.0) / (schedule.first_rate or 1.0)
        later = share ** (per_epoch / schedule.calls) if share > 0 else 0.0
        if not (fits_epochs or (schedule.period is None and later < _VANISHED)):
            continue
        period = "" if schedule.period is None else f" with a period of {schedule.period}"
        found.append(
            mistake(
                schedule.where,
                f"{schedule.name}{period} was stepped {schedule.calls} times in {steps} steps, and "
                f"an epoch has {per_epoch} steps: the learning rate went from "
                f"{schedule.first_rate:.3g} to {schedule.last_rate:.3g}",
                "step the schedule once an epoch, or give its period in steps",
            )
        )
    return found


RULE = Rule(name="schedule_per_batch", kind="mistake", nominate=nominate)
