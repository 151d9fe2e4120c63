"""A statement of the training loop takes a share of each step, and is no part of the step itself.

What it sees   time sampled below a statement that is neither the forward, the backward, the update,
               the wait for a loader nor evaluation, and that no other rule names; not the forward
               of another model, as of a teacher.
Why it costs   the model waits meanwhile.
What to do     do it once before training, less often, or for a whole batch at a time.
Evidence       samples of the running line while steps were timed: what the step would take without
               the statement was not tried, so the confidence is medium at most.
"""

from hotlap.rules.nomination import Nomination
from hotlap.rules.record import Rule
from hotlap.rules.sampled import is_of_no_kind, nominate_beside
from hotlap.trace.schema import Trace


def nominate(trace: Trace) -> list[Nomination]:
    """Nominate each statement of the loop that takes a share of the step."""
    return nominate_beside(
        trace,
        is_of_no_kind,
        "time between the update and the next forward goes to one statement",
        "do less at {spot.statement}: once before training, every some steps, or for a whole batch "
        "at a time instead of element by element",
    )


RULE = Rule(name="costly_statement", kind="speed", nominate=nominate)
