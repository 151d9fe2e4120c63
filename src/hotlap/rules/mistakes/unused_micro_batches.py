"""The last micro-batches of an epoch have no step of their own.

What it sees   backward passes behind the last step of an epoch, before the next epoch or the end of
               the script.
Why it matters the number of batches is no multiple of the accumulation. Gradients of the last ones
               are lost where they are zeroed, or at the end of the script; else they are added to
               the first step of the next epoch, which is then larger than all others.
What to do     step after the last batch as well, or use a number of batches that is a multiple.
Evidence       counts of backward passes, steps, and passes over the loader. It costs no time.
"""

from hotlap.rules.mistakes.windows import (
    has_one_optimizer,
    most_common,
    runs_closures,
    split,
    training_lines,
)
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Event, Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of a loop that leaves some of its passes without a step."""
    usual = most_common([len(window.backwards()) for window in split(trace.events)[:-1]])
    if not has_one_optimizer(trace) or usual < 2 or runs_closures(trace):
        return []
    lines = training_lines(trace)
    pending: list[Event] = []
    """Backward passes since the last step."""
    zeroed: list[Event] = []
    left: list[Event] = []
    """Those of them that were there when an epoch began: accumulation may go on across epochs."""
    for event in trace.events:
        if event.kind == event_kinds.BACKWARD:
            pending.append(event)
            # Within an epoch gradients are zeroed that were asked for something else.
            zeroed = []
        elif event.kind in (event_kinds.OPTIMIZER_STEP, event_kinds.SCALER_UPDATE):
            if left and len(pending) > usual:
                return [_report(left, usual, "go into the first step of the next one")]
            pending, zeroed, left = [], [], []
        elif event.kind == event_kinds.ZERO_GRAD and pending:
            if left == pending:
                return [_report(left, usual, "are zeroed")]
            pending, zeroed, left = [], pending, []
        elif event.kind == event_kinds.LOADER_BEGUN and event.where in lines:
            if zeroed:
                return [_report(zeroed, usual, "are zeroed")]
            left = [*pending]
    if pending and trace.ended == "script":
        return [_report(pending, usual, "are lost at the end of the script")]
    return []


def _report(pending: list[Event], usual: int, fate: str) -> Nomination:
    return mistake(
        pending[-1].where,
        f"{len(pending)} backward passes at the end of an epoch have no step, and their gradients "
        f"{fate}; the usual step has {usual} passes",
        "step after the last batch of the epoch as well",
    )


RULE = Rule(name="unused_micro_batches", kind="mistake", nominate=nominate)
