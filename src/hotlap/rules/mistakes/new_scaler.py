"""A GradScaler is made anew while the training goes on.

What it sees   the same line makes a `GradScaler` again after steps were taken.
Why it matters the scale starts at 65536 each time, and steps that overflow are skipped until it has
               come down to what the gradients need: in each epoch the first steps are lost.
What to do     make one scaler before the loop, and save its `state_dict()` with the checkpoint.
Evidence       the steps at which the line made one. It costs no time.
"""

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the line that makes a scaler several times."""
    made: dict[str, set[int]] = {}
    for event in trace.events:
        if event.kind == event_kinds.SCALER_MADE:
            made.setdefault(event.where, set()).add(event.step)
    return [
        mistake(
            where,
            f"this line made a GradScaler {len(steps)} times, after "
            f"{', '.join(map(str, sorted(steps)[:3]))} steps: its scale starts over",
            "make one GradScaler before the loop over epochs",
        )
        for where, steps in made.items()
        if len(steps) > 1 and trace.learning.scales
    ]


RULE = Rule(name="new_scaler", kind="mistake", nominate=nominate)
