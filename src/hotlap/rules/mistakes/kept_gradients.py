"""Gradients are never zeroed.

What it sees   at the first backward pass after each step the gradients of the step before are still
               there, and nothing zeroes them in most of the steps.
Why it matters `backward()` adds to what is there: every step takes the sum of all gradients since
               the beginning. It acts like a momentum of 1 that never forgets.
What to do     `optimizer.zero_grad()` before each backward pass, or after each step.
Evidence       the gradients at the first backward passes after a step. It costs no time.
"""

from hotlap.rules.mistakes.windows import has_one_optimizer
from hotlap.rules.nomination import Nomination, mistake
from hotlap.rules.record import Rule
from hotlap.trace import event_kinds
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate the step whose gradients stay."""
    learning = trace.learning
    zeroed = sum(event.kind == event_kinds.ZERO_GRAD for event in trace.events)
    steps = sum(event.kind == event_kinds.OPTIMIZER_STEP for event in trace.events)
    looked = learning.first_backwards
    # Once an epoch, or once before the loop, is seldom.
    if 2 * zeroed > steps or not has_one_optimizer(trace):
        return []
    if looked < 3 or learning.kept_gradients < looked:
        return []
    return [
        mistake(
            trace.facts.optimizers[0].where,
            f"the gradients of the step before were still there at {learning.kept_gradients} of "
            f"{looked} backward passes that followed a step"
            + (f"; they were zeroed {zeroed} times in {steps} steps" if zeroed else ""),
            "`optimizer.zero_grad()` after the step",
        )
    ]


RULE = Rule(name="kept_gradients", kind="mistake", nominate=nominate)
