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
    ends = (event_kinds.OPTIMIZER_STEP, event_kinds.SCALER_UPDATE)
    first = next((n for n, event in enumerate(trace.events) if event.kind in ends), None)
    before, after = (
        [event.where for event in events if event.kind == event_kinds.SCHEDULER_STEP]
        for events in (trace.events[:first], [] if first is None else trace.events[first:])
    )
    if not before or (before[0] not in after and (after or len(before) > 1)):
        # A run that is resumed goes through the epochs that it had taken, in a loop of its own.
        return []
    return [
        mistake(
            before[0],
            "the schedule was stepped before the optimizer's first step: its first "
            "learning rate is skipped",
            "`scheduler.step()` after `optimizer.step()`, or at the end of the epoch",
        )
    ]


RULE = Rule(name="schedule_before_update", kind="mistake", nominate=nominate)
