"""The learning-rate schedule is stepped before the optimizer.

What it sees   the first step of a schedule comes before the first step of the optimizer.
Why it matters the schedule's first learning rate is never used: every update takes the rate that
               was meant for the next one.
What to do     `optimizer.step()` first, then `scheduler.step()`; once an epoch: at its end.
Evidence       the order of the calls. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step of a schedule that comes first."""
    for event in trace.events:
        if event.kind in (event_kinds.OPTIMIZER_STEP, event_kinds.SCALER_UPDATE):
            break
        if event.kind == event_kinds.SCHEDULER_STEP:
            return [
                mistake(
                    event.where,
                    "the schedule was stepped before the optimizer's first step: its first "
                    "learning rate is skipped",
                    "`scheduler.step()` after `optimizer.step()`, or at the end of the epoch",
                )
            ]
    return []


RULE = Rule(name="schedule_before_update", kind="mistake", nominate=nominate)
