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
    split,
    training_lines,
)
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the backward of a loop that leaves some of its passes without a step."""
    windows = split(trace.events)
    usual = most_common([len(window.backwards()) for window in windows[:-1]])
    if not has_one_optimizer(trace) or usual < 2:
        return []
    lines = training_lines(trace)
    for window in windows:
        begun = [
            number
            for number, event in enumerate(window.events)
            if event.kind == event_kinds.LOADER_BEGUN and event.where in lines
        ]
        is_last = window is windows[-1] and trace.ended == "script"
        end = begun[0] if begun else len(window.events) if is_last else 0
        left = [e for e in window.events[:end] if e.kind == event_kinds.BACKWARD]
        if left:
            rest = {event.kind for event in window.events[end:]}
            lost = is_last or event_kinds.ZERO_GRAD in rest
            then = "are lost" if lost else "go into the first step of the next epoch"
            return [
                mistake(
                    left[-1].where,
                    f"{len(left)} backward passes at the end of an epoch have no step: their "
                    f"gradients {then} (the usual step has {usual})",
                    "step after the last batch of the epoch as well",
                )
            ]
    return []


RULE = Rule(name="unused_micro_batches", kind="mistake", nominate=nominate)
