"""A checkpoint lacks a part of the run's state.

What it sees   a file that is saved with the optimizer's state, without that of a schedule or a
               `GradScaler` that is in use.
Why it matters a run that is resumed from it starts the schedule, or the scale, over: the learning
               rate jumps back to its first value.
What to do     save and restore `scheduler.state_dict()` and `scaler.state_dict()` as well.
Evidence       the keys of what is saved, and the objects that are in use. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the lines that save a part."""
    learning = trace.learning
    found = []
    # Some trainers save each part in a file of its own.
    has_schedule = any(saved.schedule for saved in learning.saved)
    has_scaler = any(saved.scaler for saved in learning.saved)
    for saved in learning.saved:
        lacking = []
        if learning.schedules and not has_schedule:
            lacking.append(f"the schedule's ({learning.schedules[0].name})")
        if learning.scales and not has_scaler:
            lacking.append("the GradScaler's")
        if saved.optimizer and lacking:
            found.append(
                mistake(
                    saved.where,
                    f"the file has the optimizer's state, and not {' or '.join(lacking)}, which is "
                    "in use",
                    "save its `state_dict()` as well, and load it when the run is resumed",
                )
            )
    return found[:1]


RULE = Rule(name="incomplete_checkpoint", kind="mistake", nominate=nominate)
