"""Gradients are zeroed between backward and step.

What it sees   a zeroing behind the last backward pass of every step, and steps that begin with no
               gradient, or with zeros only.
Why it matters the optimizer gets nothing of what backward has computed: parameters keep their
               initial values, but for weight decay.
What to do     zero before the backward pass, or behind the step.
Evidence       the order of calls, and the gradients at the first steps. It costs no time.
"""

from hotlap.rules.mistakes.windows import has_one_optimizer, runs_closures, split
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace

_LEAST = 3


def zeroing_line(trace: Trace) -> str:
    """Return where gradients are zeroed before each step, empty if they are not."""
    looked = trace.learning.looked_at_steps
    if looked < _LEAST or trace.learning.empty_steps < looked:
        return ""
    if not has_one_optimizer(trace) or runs_closures(trace):
        return ""
    windows = split(trace.events)[:-1]
    if not windows or any(window.backwards() for window in windows):
        return ""
    places = [
        event.where
        for window in windows
        if window.count(event_kinds.BACKWARD)
        for event in window.events
        if event.kind == event_kinds.ZERO_GRAD
    ]
    return places[-1] if places else ""


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the line that takes the gradients away."""
    where = zeroing_line(trace)
    if not where:
        return []
    return [
        mistake(
            where,
            "gradients are zeroed after the backward pass and before the step at "
            f"{trace.facts.optimizers[0].where}, which finds none",
            "zero the gradients before the backward pass, or after the step",
        )
    ]


RULE = Rule(name="zeroed_before_step", kind="mistake", nominate=nominate)
