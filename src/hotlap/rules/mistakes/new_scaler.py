"""A new GradScaler is made while the training continues.

What it sees   the same line makes a `GradScaler` again after steps were taken, or is in a counted
               loop that trains with an optimizer from outside the loop.
Why it matters the scale starts at 65536 each time, and steps that overflow are skipped until it has
               come down to what the gradients need: in each epoch the first steps are lost.
What to do     make one scaler before the loop, and save its `state_dict()` with the checkpoint.
Evidence       the steps at which the line made one, or the loop and how often it goes round. It
               costs no time.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace

_BY_HAND = "make one GradScaler before the loop over epochs"


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the line that makes a scaler several times."""
    made: dict[str, set[int]] = {}
    for event in trace.events:
        if event.kind == event_kinds.SCALER_MADE:
            made.setdefault(event.where, set()).add(event.step)
    optimizers = trace.learning.optimizers_made
    again = {where: steps for where, steps in made.items() if _starts_over(steps, optimizers)}
    if not trace.learning.scales:
        return []
    return [
        mistake(
            where,
            f"this line made a GradScaler {len(steps)} times, after "
            f"{', '.join(map(str, sorted(steps)[:3]))} steps: its scale starts over",
            _BY_HAND,
        )
        for where, steps in again.items()
    ] + [
        mistake(
            each.where,
            f"this line makes a GradScaler in each of the {each.passes} passes of the loop at "
            f"{each.loop}: its scale starts over",
            _BY_HAND,
        )
        for each in trace.learning.scalers
        if each.where not in again
    ]


def _starts_over(steps: Iterable[int], optimizers: Sequence[int]) -> bool:
    """Return whether a scaler was made again for an optimizer that had one."""
    return any(
        not any(before < made <= after for made in optimizers)
        for before, after in pairwise(sorted(steps))
    )


RULE = Rule(name="new_scaler", kind="mistake", nominate=nominate)
